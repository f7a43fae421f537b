"""BLIP as a callback of Lightning. A task is a ``trainer.fit``."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .._messages import install

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{__name__} needs the extra 'lightning': {install('lightning')}") from missing

from ..blip.attachment import Attachment
from ..blip.blip import BLIP
from ..blip.consolidation import Consolidation


class BLIPCallback(Callback):
    """Clamps after each step of a fit, and consolidates at its end.

    Lightning's checkpoints carry BLIP's state. A checkpoint from within a fit holds the state before consolidation;
    ``trainer.save_checkpoint`` after the fit holds the state after it. ``report`` holds the last ``Consolidation``.

    Args:
        blip: a BLIP of the LightningModule or of a part of it.
        data: batches to consolidate with, as in ``BLIP.consolidate``. Default: the training data.
        forward: as in ``BLIP.consolidate``. Default: ``blip.model``.
        samples: how many samples to consolidate with. Default: all.
        at_end: False leaves ``blip.consolidate`` to you.

    Raises:
        ValueError: the trainer uses several devices, or fits another model (when the fit starts).

    Example:
        ```python
        callback = BLIPCallback(BLIP(module, watch=module.backbone))
        for loader in loaders:
            Trainer(max_epochs=5, devices=1, callbacks=[callback]).fit(module, loader)
        ```
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
        # Lightning has no hook after a step, torch has one.
        self._attachment = self.blip.attach()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.at_end:
            data = trainer.train_dataloader if self.data is None else self.data
            self.report = self.blip.consolidate(data, self.forward, samples=self.samples)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # Lightning leaves out teardown after an error

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
            f"the trainer must use one device, got {type(trainer.strategy).__name__}, which spreads the model or the "
            "data; use Trainer(devices=1)"
        )


def _require_part(model: nn.Module, whole: nn.Module) -> None:
    if not any(module is model for module in whole.modules()):
        raise ValueError("the trainer must fit the model that BLIP watches; build BLIP from this module or its parts")
