"""Hooks that clamp after an optimizer's step."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Clamper(Protocol):
    def _before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None: ...
    def _after_step(self, optimizer: Optimizer) -> bool: ...


class Follower(Protocol):
    """What is told of the steps of every optimizer."""

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def after(self, optimizer: Optimizer, *_: object) -> None: ...


class Attachment:
    """A clamp after the steps of one optimizer, or of all.

    The attachment ends with ``remove()``, at the end of its ``with`` block, or with the object that clamps. It keeps
    neither that object nor the optimizer alive.
    """

    def __init__(self, clamper: Any, optimizer: Optimizer | None) -> None:
        self.steps = 0  # steps that moved a watched parameter since the last consolidate
        self.claims = 1  # calls of attach() that returned this; the end of a with block gives back one
        self.was_removed = False
        self._clamper: weakref.ref[Clamper] = weakref.ref(clamper)
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._handles: tuple[Any, ...] = ()
        if optimizer is None:
            follow_every_optimizer(self)
        else:
            before = optimizer.register_step_pre_hook(self.before)
            after = optimizer.register_step_post_hook(self.after)
            self._handles = before, after

    @property
    def active(self) -> bool:
        alive = self._clamper() is not None and (self._optimizer is None or self._optimizer() is not None)
        return alive and not self.was_removed

    def is_to(self, optimizer: Optimizer | None) -> bool:
        """Whether this attachment is to that optimizer; None stands for all."""
        return optimizer is None if self._optimizer is None else self._optimizer() is optimizer

    def remove(self) -> None:
        self.was_removed = True
        _everywhere.discard(self)
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *_: object) -> None:
        self.claims -= 1
        if not self.claims:
            self.remove()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        clamper = self._clamper()
        if clamper is not None:
            closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args begin with the optimizer itself
            clamper._before_step(optimizer, has_closure=closure is not None)

    def after(self, optimizer: Optimizer, *_: object) -> None:
        clamper = self._clamper()
        if clamper is not None:
            self.steps += clamper._after_step(optimizer)


class Attachments:
    """The attachments of one object that clamps."""

    def __init__(self) -> None:
        self._each: list[Attachment] = []

    def __iter__(self) -> Iterator[Attachment]:
        return iter(self._each)

    def to(self, clamper: Any, optimizer: Optimizer | None) -> tuple[Attachment, bool]:
        """The attachment to an optimizer, or to all, and whether it is new."""
        self._each = [attachment for attachment in self._each if attachment.active]
        for attachment in self._each:
            if attachment.is_to(optimizer):
                attachment.claims += 1
                return attachment, False
        self._each.append(Attachment(clamper, optimizer))
        return self._each[-1], True

    def clamp_after(self, optimizer: Optimizer) -> bool:
        """Whether an attachment follows this optimizer."""
        return any(a.active and (a.is_to(None) or a.is_to(optimizer)) for a in self._each)

    @property
    def are_to_every_optimizer(self) -> bool:
        return any(a.active and a.is_to(None) for a in self._each)

    @property
    def were_not_removed(self) -> bool:
        """Whether one was never removed, be the object that clamps alive or not."""
        return any(not attachment.was_removed for attachment in self._each)

    def remove(self) -> None:
        for attachment in self._each:
            attachment.remove()


# One pair of global hooks serves all followers and is never removed. A hook that is removed while torch walks through
# its hooks, for example by the garbage collector, would break the optimizer's step.
_everywhere: "weakref.WeakSet[Follower]" = weakref.WeakSet()
_hooked = False


def follow_every_optimizer(follower: Follower) -> None:
    """Tell a follower, for as long as it lives, of the steps of every optimizer."""
    global _hooked
    _everywhere.add(follower)
    if not _hooked:
        register_optimizer_step_pre_hook(_before_any_step)
        register_optimizer_step_post_hook(_after_any_step)
        _hooked = True


def _before_any_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for follower in tuple(_everywhere):
        follower.before(optimizer, args, kwargs)


def _after_any_step(optimizer: Optimizer, *_: object) -> None:
    for follower in tuple(_everywhere):
        follower.after(optimizer)


def unwrap(optimizer: Any) -> Optimizer:
    """The torch optimizer inside wrappers that keep it as ``.optimizer``, such as Accelerate's and Lightning's."""
    while not isinstance(optimizer, Optimizer) or hasattr(optimizer, "optimizer"):
        if not hasattr(optimizer, "optimizer"):
            raise TypeError(
                f"optimizer must be a torch optimizer or a wrapper with .optimizer, got {type(optimizer).__name__}"
            )
        optimizer = optimizer.optimizer
    return optimizer


def likely_cause(attachments: Iterable[Attachment]) -> str:
    """Likely cause of parameters outside their intervals, and what to do about it."""
    active = [attachment for attachment in attachments if attachment.active]
    if not active:
        return "no optimizer is attached, so call blip.attach() before training (or blip.clamp_() after each step)"
    if not any(attachment.steps for attachment in active):
        return (
            "no attached optimizer has made a step since the last task, so attach() to the one that trains, or "
            "call blip.clamp_() if weights were restored or edited"
        )
    return (
        "weights were changed after the last step (restored, averaged, edited), or modules replaced, so call "
        "blip.clamp_() after that"
    )
