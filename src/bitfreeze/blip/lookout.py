"""A lookout for training that nothing clamps: ``attach()`` was forgotten, or is to another optimizer."""

import weakref
from typing import Any, Protocol

from torch.optim import Optimizer

from .._messages import warn_caller
from .attachment import follow_every_optimizer


class Holder(Protocol):
    def _clamps(self, optimizer: Optimizer) -> bool: ...
    def _watches(self, optimizer: Optimizer) -> bool: ...


class Lookout:
    """Warns once if an optimizer makes two steps of watched parameters and no clamp comes between them.

    It keeps neither the object that it looks after nor an optimizer alive.
    """

    def __init__(self, holder: Any) -> None:
        self._holder: weakref.ref[Holder] = weakref.ref(holder)
        self._unclamped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._is_over = False
        follow_every_optimizer(self)

    def note_clamp(self) -> None:
        """Note that all watched parameters were clamped."""
        self._unclamped.clear()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        holder = self._holder()
        if self._is_over or holder is None or holder._clamps(optimizer) or not holder._watches(optimizer):
            return
        if optimizer in self._unclamped:
            self._is_over = True
            warn_caller(
                "watched parameters are trained and nothing clamps them, so earlier tasks are not protected; call "
                "blip.attach() before you train, or blip.clamp_() after each step"
            )
        self._unclamped.add(optimizer)

    def after(self, optimizer: Optimizer, *_: object) -> None:
        """Nothing to do."""
