"""BLIP as a plugin of Avalanche's supervised strategies. A task is an experience."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from .._messages import install

try:
    from avalanche.models import IncrementalClassifier, MultiHeadClassifier
    from avalanche.training.plugins import SupervisedPlugin
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{__name__} needs the extra 'avalanche': {install('avalanche')}") from missing

from ..blip.attachment import Attachment
from ..blip.blip import BLIP
from ..blip.consolidation import Consolidation

HEADS = (MultiHeadClassifier, IncrementalClassifier)


class BLIPPlugin(SupervisedPlugin):
    """Clamps after each update, and consolidates with an experience's data at its end.

    ``report`` holds the last ``Consolidation``.

    Args:
        blip: a BLIP of the strategy's model. It cannot watch a classifier that grows with the classes: see
            ``backbone``.
        samples: how many samples of an experience to consolidate with. Default: all.

    Raises:
        ValueError: the strategy trains another model (when training starts).

    Example:
        ```python
        blip = BLIP(model, watch=backbone(model))
        strategy = Naive(model=model, optimizer=optimizer, criterion=criterion, plugins=[BLIPPlugin(blip)])
        for experience in stream:
            strategy.train(experience)
        ```
    """

    def __init__(self, blip: BLIP, *, samples: int | None = None) -> None:
        super().__init__()
        self.blip, self.samples = blip, samples
        self.report: Consolidation | None = None
        self._attachment: Attachment | None = None

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        if strategy.model is not self.blip.model:
            raise ValueError("the strategy must train the model that BLIP watches; build BLIP from strategy.model")
        # Strategies change their optimizer as the model grows, so BLIP attaches to all optimizers of the model.
        self._attachment = self.blip.attach()

    def after_training_exp(self, strategy: Any, num_workers: int = 0, **kwargs: Any) -> None:
        dataset, current = strategy.experience.dataset, strategy.mbatch
        loader = DataLoader(
            dataset,
            batch_size=strategy.train_mb_size,
            shuffle=True,  # otherwise ``samples`` may cover only the first classes
            num_workers=num_workers,
            collate_fn=getattr(dataset, "collate_fn", None),
        )

        def forward(batch: Any) -> Any:
            strategy.mbatch = batch
            return strategy.forward()  # passes task labels to models that take them

        try:
            batches = ((list(batch), batch[1]) for batch in loader)
            self.report = self.blip.consolidate(batches, forward, samples=self.samples)
        finally:
            strategy.mbatch = current
            assert self._attachment is not None
            self._attachment.remove()

    def state_dict(self) -> dict[str, Any]:
        return self.blip.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.blip.load_state_dict(state)


def backbone(model: nn.Module) -> list[nn.Module | str]:
    """All parts of a model but its classifier heads, for ``BLIP(watch=...)``.

    Args:
        model: any module. Its heads are of class MultiHeadClassifier or IncrementalClassifier.

    Returns:
        Submodules without heads, and names of parameters outside these.
    """
    return list(_outside_heads(model, ""))


def _outside_heads(module: nn.Module, prefix: str) -> Iterator[nn.Module | str]:
    if isinstance(module, HEADS):
        return
    if not any(isinstance(part, HEADS) for part in module.modules()):
        yield module
        return
    for name, _ in module.named_parameters(recurse=False):
        yield f"{prefix}{name}"
    for name, child in module.named_children():
        yield from _outside_heads(child, f"{prefix}{name}.")
