"""Hooks that clamp after an optimizer's step."""

import weakref
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Clamper(Protocol):
    def _before_step(self, optimizer: Optimizer) -> None: ...
    def _after_step(self, optimizer: Optimizer) -> bool: ...


class Attachment:
    """A clamp after the steps of one optimizer, or of all (``optimizer`` None). It ends with ``remove()``, or when the
    object that clamps is gone: it does not keep that alive."""

    def __init__(self, clamper: Any, optimizer: Optimizer | None) -> None:
        self.optimizer = optimizer
        self.steps = 0  # that moved a watched parameter, since the last consolidate
        self.active = True
        self._clamper: weakref.ref[Clamper] = weakref.ref(clamper)
        self._handles: tuple[Any, ...] = ()
        if optimizer is None:
            _to_every_optimizer(self)
        else:
            before = optimizer.register_step_pre_hook(self._before)
            after = optimizer.register_step_post_hook(self._after)
            self._handles = before, after

    def remove(self) -> None:
        self.active = False
        _everywhere.discard(self)
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
        if clamper is not None:
            self.steps += clamper._after_step(optimizer)


# One pair of global hooks serves all attachments and is never taken away: a hook that goes while torch walks through
# its hooks (say because the garbage collector ran just then) would break the optimizer's step.
_everywhere: "weakref.WeakSet[Attachment]" = weakref.WeakSet()
_hooked = False


def _to_every_optimizer(attachment: Attachment) -> None:
    global _hooked
    _everywhere.add(attachment)
    if not _hooked:
        register_optimizer_step_pre_hook(_before_any_step)
        register_optimizer_step_post_hook(_after_any_step)
        _hooked = True


def _before_any_step(optimizer: Optimizer, *_: object) -> None:
    for attachment in tuple(_everywhere):
        attachment._before(optimizer)


def _after_any_step(optimizer: Optimizer, *_: object) -> None:
    for attachment in tuple(_everywhere):
        attachment._after(optimizer)


def unwrap(optimizer: Any) -> Optimizer:
    """The torch optimizer inside wrappers that keep it as ``.optimizer`` (Accelerate, Lightning and others do)."""
    while not isinstance(optimizer, Optimizer) or hasattr(optimizer, "optimizer"):
        if not hasattr(optimizer, "optimizer"):
            raise TypeError(
                f"attach() takes a torch optimizer or a wrapper with .optimizer, not {type(optimizer).__name__}"
            )
        optimizer = optimizer.optimizer
    return optimizer
