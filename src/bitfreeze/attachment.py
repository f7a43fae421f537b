"""Hooks that clamp after an optimizer's step."""

import weakref
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Clamper(Protocol):
    def _before_step(self, optimizer: Optimizer) -> None: ...
    def _after_step(self, optimizer: Optimizer) -> bool: ...


class Attachment:
    """A clamp after the steps of one optimizer, or of all (``optimizer`` None). Ends with ``remove()``, or with the
    object that clamps, which is not kept alive by it."""

    def __init__(self, clamper: "weakref.ref[Any]", optimizer: Optimizer | None) -> None:
        self.optimizer = optimizer
        self.steps = 0  # that moved a watched parameter, since the last consolidate
        self.active = True
        self._clamper: weakref.ref[Clamper] = clamper
        if optimizer is None:
            before = register_optimizer_step_pre_hook(self._before)
            after = register_optimizer_step_post_hook(self._after)
        else:
            before = optimizer.register_step_pre_hook(self._before)
            after = optimizer.register_step_post_hook(self._after)
        self._handles = (before, after)

    def remove(self) -> None:
        self.active = False
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _before(self, optimizer: Optimizer, *_: object) -> None:
        clamper = self._clamper()
        if clamper is not None:
            clamper._before_step(optimizer)

    def _after(self, optimizer: Optimizer, *_: object) -> None:
        clamper = self._clamper()
        if clamper is None:
            self.remove()
            return
        self.steps += clamper._after_step(optimizer)


def unwrap(optimizer: Any) -> Optimizer:
    """The torch optimizer inside wrappers that keep it as ``.optimizer`` (Accelerate, Lightning and others do)."""
    while not isinstance(optimizer, Optimizer) or hasattr(optimizer, "optimizer"):
        if not hasattr(optimizer, "optimizer"):
            raise TypeError(
                f"attach() takes a torch optimizer or a wrapper with .optimizer, not {type(optimizer).__name__}"
            )
        optimizer = optimizer.optimizer
    return optimizer
