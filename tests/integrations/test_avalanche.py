"""The plugin inside Avalanche's own strategies."""

import copy
from typing import Any

import pytest

pytest.importorskip("avalanche", reason="the extra 'avalanche' is not installed")

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, MultiTaskModule
from avalanche.models.utils import avalanche_model_adaptation
from avalanche.training import Naive, Replay
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import TensorDataset

from bitfreeze import BLIP
from bitfreeze.integrations.avalanche import BLIPPlugin, backbone
from support.doc_blocks import run_block
from support.protected_nets import assert_detached_after_failing, assert_inside, assert_same, entries_at_an_end
from support.scripts import script

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),  # Avalanche's use of its own older parts
    pytest.mark.filterwarnings("ignore:No loggers specified"),
]


class MultiHead(MultiTaskModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 10), nn.Tanh())
        self.shift = nn.Parameter(torch.zeros(10))
        self.heads = MultiHeadClassifier(10)

    def forward(self, x: Tensor, task_labels: Any) -> Tensor:
        return self.heads(self.body(x) + self.shift, task_labels)


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 10)
        self.head = IncrementalClassifier(10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


def stream(task_labels: bool = True) -> Any:
    """Three experiences of two classes."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(90, 6, generator=generator), torch.arange(90) % 6)
    data.targets = data.tensors[1]
    return nc_benchmark(
        data, data, 3, task_labels=task_labels, seed=0, class_ids_from_zero_in_each_exp=task_labels
    ).train_stream


def strategy_for(model: nn.Module, *plugins: SupervisedPlugin, kind: type = Naive, **options: Any) -> Any:
    return kind(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), criterion=nn.CrossEntropyLoss(),
        train_mb_size=8, train_epochs=3, evaluator=None, plugins=list(plugins), **options,
    )  # fmt: skip


def multi_head(**settings: Any) -> tuple[MultiHead, BLIP]:
    torch.manual_seed(0)
    model = MultiHead()
    return model, BLIP(model, **{"watch": backbone(model), "budget": 0.3, **settings})


class Inside(SupervisedPlugin):
    """Looks after each update whether any parameter is outside."""

    def __init__(self, blip: BLIP) -> None:
        super().__init__()
        self.blip, self.at_an_end = blip, 0

    def after_update(self, strategy: Any, *_: Any, **__: Any) -> None:
        assert_inside(self.blip)
        self.at_an_end = max(self.at_an_end, entries_at_an_end(self.blip))


class NewOptimizer(SupervisedPlugin):
    """A strategy that builds its optimizer anew in each epoch."""

    def before_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        strategy.optimizer = torch.optim.SGD(strategy.model.parameters(), lr=1.0)


def test_less_is_forgotten_with_the_plugin() -> None:
    plain = run_block("how-to/integrations.md", "Avalanche", {"plugins=[plugin]": "plugins=[]"})
    names = run_block("how-to/integrations.md", "Avalanche")
    assert plain["forgotten"] > 0.08
    assert names["forgotten"] < 0.03
    assert min(names["learned"]) > 0.85
    assert names["blip"].tasks == 3


@pytest.mark.parametrize(
    ("kind", "options", "others"),
    [(Naive, {}, []), (Naive, {}, [NewOptimizer()]), (Replay, {"mem_size": 20}, [])],
    ids=["naive", "optimizer rebuilt", "replay"],
)
def test_every_update_is_clamped(kind: type, options: dict[str, Any], others: list[SupervisedPlugin]) -> None:
    model, blip = multi_head()
    plugin, inside = BLIPPlugin(blip), Inside(blip)
    strategy = strategy_for(model, *others, plugin, inside, kind=kind, **options)
    for task, experience in enumerate(stream(), start=1):
        strategy.train(experience)
        assert plugin.report.task == blip.tasks == task
        assert plugin.report.samples == 30  # this experience's, and none of what is replayed
    assert inside.at_an_end > 0


class RowsAfter(SupervisedPlugin):
    """How many rows the strategy's batch has after an experience."""

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.rows = len(strategy.mbatch[0])


def test_task_labels_reach_the_right_head() -> None:
    model, blip = multi_head(watch=None)
    after = RowsAfter()
    strategy = strategy_for(model, BLIPPlugin(blip, samples=20), after)
    for task, experience in enumerate(stream()):
        strategy.train(experience)
        bits = blip.frozen_bits()
        assert all(bits[f"heads.classifiers.{k}.classifier.weight"].any() for k in range(task + 1))
        assert blip.state_dict()["tensors"][f"heads.classifiers.{task}.classifier.weight"]["tasks"] == 1
        assert after.rows == 6  # of 30 in batches of 8, and not one of the 8 that came last to the Fisher


def test_the_strategys_own_forward_is_used() -> None:
    called = []

    class Doubled(Naive):
        def forward(self) -> Tensor:
            called.append(self.model.training)
            return 2 * super().forward()

    model, blip = multi_head()
    strategy_for(model, BLIPPlugin(blip), kind=Doubled).train(stream()[0])
    assert called.count(True) == 3 * 4
    assert called.count(False) >= 4  # for the Fisher, in eval mode


def test_backbone_is_all_but_the_heads() -> None:
    model, blip = multi_head()
    assert list(blip.frozen_bits()) == ["shift", "body.0.weight", "body.0.bias"]
    assert backbone(model)[1:] == [model.body]
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert backbone(plain) == [plain]


def test_a_head_that_grows() -> None:
    """Left out of watch it grows; watched it is refused before the next experience is trained."""
    torch.manual_seed(0)
    model = Growing()
    plugin = BLIPPlugin(BLIP(model, watch=backbone(model)))
    strategy_for(model, plugin).train(stream(task_labels=False))
    assert plugin.blip.tasks == 3
    assert model.head.classifier.out_features == 6
    model = Growing()
    strategy = strategy_for(model, BLIPPlugin(BLIP(model)))
    experiences = sorted(stream(task_labels=False), key=lambda e: max(e.classes_in_this_experience))
    strategy.train(experiences[0])
    before = copy.deepcopy(model.body.state_dict())
    with pytest.raises(ValueError, match=r"'head\.classifier\.weight' had the shape .* and has \[6, 10\] now"):
        strategy.train(experiences[-1])
    assert_same(dict(model.body.state_dict()), dict(before))


def test_go_on_from_a_checkpoint() -> None:
    """In a new process: the same weights, bits and centres as without a break."""
    experiences = stream()
    model, blip = multi_head()
    plugin = BLIPPlugin(blip)
    strategy = strategy_for(model, plugin)
    strategy.train(experiences[0])
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(plugin.state_dict())
    torch.manual_seed(1)
    strategy.train(experiences[1])

    other, fresh = multi_head()
    avalanche_model_adaptation(other, experiences[0])
    other.load_state_dict(weights)
    resumed = BLIPPlugin(fresh)
    resumed.load_state_dict(state)
    new = strategy_for(other, resumed)
    torch.manual_seed(1)
    new.train(experiences[1])
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert_same(fresh.state_dict(), blip.state_dict())


def test_the_benchmark_compares_like_with_like() -> None:
    """Each side makes as many steps, and learns."""
    avalanche_ewc = script("benchmarks/avalanche_ewc")

    steps = []
    hook = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    data = avalanche_ewc.Data.of("digits5")
    data.train = [(x[:70], y[:70]) for x, y in data.train]
    try:
        for side, run in avalanche_ewc.sides(data, epochs=2, strength=1.0).items():
            steps.clear()
            matrix = run(evaluate=True)
            assert len(steps) == 5 * 2 * 3, side
            assert [len(row) for row in matrix] == [5] * 5
            assert matrix[0][0] > 80
    finally:
        hook.remove()


def test_another_model_is_refused() -> None:
    model, _ = multi_head()
    with pytest.raises(ValueError, match=r"must train the model that BLIP watches; build BLIP from strategy\.model"):
        strategy_for(model, BLIPPlugin(multi_head()[1])).train(stream()[0])


def test_a_consolidation_that_fails_leaves_nothing_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    model, blip = multi_head()
    strategy, experiences = strategy_for(model, BLIPPlugin(blip)), stream()
    strategy.train(experiences[0])
    assert_detached_after_failing(blip, lambda: strategy.train(experiences[1]), monkeypatch)
