"""The callback inside Lightning's own trainer."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bitfreeze import BLIP, Rules
from bitfreeze.integrations.lightning import BLIPCallback
from support.doc_blocks import run_block
from support.protected_nets import (
    assert_detached_after_failing,
    assert_inside,
    assert_same,
    entries_at_an_end,
    make_task,
)

pytestmark = [
    # that a loader has no workers, and the like
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning's use of torch
]


class Small(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 10), nn.Tanh())
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    def training_step(self, batch: Any) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def data(task: int) -> DataLoader:
    return DataLoader(TensorDataset(*make_task(task)), batch_size=8)


def trainer(*callbacks: Callback, epochs: int = 3, **options: Any) -> lightning.Trainer:
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    checkpoints = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    return lightning.Trainer(
        max_epochs=epochs, callbacks=list(callbacks), **{**silent, "enable_checkpointing": checkpoints, **options}
    )


def watched(**settings: Any) -> tuple[Small, BLIP]:
    model = Small()
    return model, BLIP(model, **{"budget": 0.3, **settings})


def test_less_is_forgotten_with_the_callback() -> None:
    plain = run_block("how-to/integrations.md", "Lightning", {"callbacks=[callback]": "callbacks=[]"})
    names = run_block("how-to/integrations.md", "Lightning")
    assert plain["forgotten"] > 0.2
    assert names["forgotten"] < 0.1
    assert min(names["learned"]) > 0.93
    assert names["blip"].tasks == 2


class Inside(Callback):
    """Looks after each batch whether any parameter is outside."""

    def __init__(self, blip: BLIP) -> None:
        self.blip, self.at_an_end = blip, 0

    def on_train_batch_end(self, *_: Any) -> None:
        assert_inside(self.blip)
        self.at_an_end = max(self.at_an_end, entries_at_an_end(self.blip))


def test_every_step_is_clamped_until_the_fit_ends() -> None:
    model, blip = watched()
    callback, inside = BLIPCallback(blip), Inside(blip)
    for task in range(2):
        trainer(callback, inside).fit(model, data(task))
        assert callback.report.task == blip.tasks == task + 1
        assert callback.report.samples == 32
    assert inside.at_an_end > 0
    with pytest.warns(UserWarning, match="nothing clamps them"):
        trainer().fit(model, data(2))
    with pytest.raises(AssertionError):
        assert_inside(blip)


def test_data_and_forward_can_be_given_and_the_end_left_to_the_user() -> None:
    model, blip = watched(watch="body")
    seen = []

    def forward(x: Tensor) -> Tensor:
        seen.append(len(x))
        return model(x)

    callback = BLIPCallback(blip, data=[make_task(7, rows=20)], forward=forward, samples=15)
    trainer(callback).fit(model, data(0))
    assert 20 in seen
    assert callback.report.samples == 15
    trainer(BLIPCallback(blip, at_end=False)).fit(model, data(1))
    assert blip.tasks == 1
    assert_inside(blip)


def test_the_state_travels_in_checkpoints(tmp_path: Path) -> None:
    model, blip = watched()
    first = trainer(BLIPCallback(blip))
    first.fit(model, data(0))
    first.save_checkpoint(tmp_path / "task.ckpt")
    other, fresh = watched()
    trainer(BLIPCallback(fresh), epochs=3).fit(other, data(0), ckpt_path=tmp_path / "task.ckpt")
    assert_same(fresh.state_dict(), blip.state_dict())  # that fit had no epoch left
    saved = torch.load(tmp_path / "task.ckpt", weights_only=True)
    assert_same(saved["callbacks"][BLIPCallback.state_key], blip.state_dict())


class Seed(Callback):
    """The Fisher draws labels, and Lightning does not restore random states."""

    def on_train_end(self, *_: Any) -> None:
        torch.manual_seed(0)


def test_a_fit_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    """After a resume in the midst of the second task: the same weights, bits and centres as without a break."""

    def second_task(model: Small, blip: BLIP, checkpoint: Path | None = None) -> None:
        keep = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
        trainer(Seed(), BLIPCallback(blip), keep, epochs=4).fit(model, data(1), ckpt_path=checkpoint)

    model, blip = watched()
    trainer(BLIPCallback(blip)).fit(model, data(0))
    second_task(model, blip)
    other, fresh = watched()
    second_task(other, fresh, tmp_path / "epoch=1.ckpt")
    assert fresh.tasks == 2
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert_same(fresh.state_dict(), blip.state_dict())


def test_what_is_refused() -> None:
    model, blip = watched()
    before = blip.state_dict()
    with pytest.raises(TypeError, match="got bfloat16, which cannot hold the bits"):
        trainer(BLIPCallback(blip), precision="bf16-true").fit(model, data(0))
    model.float()
    with pytest.raises(
        ValueError, match=r"got DDPStrategy, which spreads the model or the data; use Trainer\(devices=1\)"
    ):
        trainer(BLIPCallback(blip), strategy="ddp").fit(model, data(0))
    with pytest.raises(ValueError, match="must fit the model that BLIP watches"):
        trainer(BLIPCallback(blip)).fit(Small(), data(0))
    assert_same(blip.state_dict(), before)
    model, blip = watched(rules=Rules.text(straight_through=True))
    with pytest.raises(ValueError, match="passes must come before the step, not in a closure"):
        trainer(BLIPCallback(blip)).fit(model, data(0))


def test_mixed_precision_keeps_float32_weights() -> None:
    model, blip = watched()
    trainer(BLIPCallback(blip), precision="bf16-mixed").fit(model, data(0))
    assert blip.tasks == 1
    assert blip.capacity() > 0


def test_a_consolidation_that_fails_leaves_nothing_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    model, blip = watched()
    trainer(BLIPCallback(blip)).fit(model, data(0))
    fit = trainer(BLIPCallback(blip)).fit
    assert_detached_after_failing(blip, lambda: fit(model, data(1)), monkeypatch)
