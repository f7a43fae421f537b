"""BLIP as a callback of Lightning: a task is a ``trainer.fit``."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from ..missing import install

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"this needs the extra 'lightning': {install('lightning')}") from missing

from ..attachment import Attachment
from ..blip import BLIP
from ..consolidation import Consolidation


class BLIPCallback(Callback):
    """Clamps after each step of a fit, and consolidates at its end.

    blip: a BLIP of the LightningModule or of a part of it.
    data, forward: what to consolidate with, as in BLIP.consolidate; by default the training data, and ``blip.model``
        called with the first element of a batch.
    samples: how many of the data; default all.
    at_end: False leaves the end of a task to you: call ``blip.consolidate`` yourself.

    Lightning's checkpoints carry the state. One that is written while a task is being learned holds the state before
    its end; ``trainer.save_checkpoint`` after the fit holds the one after it.
    """

    state_key = "bitfreeze.BLIP"

    def __init__(
        self,
        blip: BLIP,
        *,
        data: Iterable[Any] | None = None,
        forward: Callable[[Any], Any] | None = None,
        samples: int | None = None,
        at_end: bool = True,
    ) -> None:
        self.blip, self.data, self.forward, self.samples, self.at_end = blip, data, forward, samples, at_end
        self.report: Consolidation | None = None
        self._attachment: Attachment | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            _require_one_device(trainer)
            _require_part(self.blip.model, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Lightning calls nobody after a step: torch itself does
        self._attachment = self.blip.attach()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.at_end:
            data = trainer.train_dataloader if self.data is None else self.data
            self.report = self.blip.consolidate(data, self.forward, samples=self.samples)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._attachment is not None:
            self._attachment.remove()

    def state_dict(self) -> dict[str, Any]:
        return self.blip.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.blip.load_state_dict(state_dict)


def _require_one_device(trainer: Trainer) -> None:
    if not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise ValueError(
            f"BLIPCallback works on one device, and {type(trainer.strategy).__name__} spreads the model or the data: "
            "use Trainer(devices=1)"
        )


def _require_part(model: nn.Module, whole: nn.Module) -> None:
    if not any(module is model for module in whole.modules()):
        raise ValueError(
            "the trainer fits another model than BLIP watches: build BLIP from this module or a part of it"
        )
