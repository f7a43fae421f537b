"""A lookout for training that nothing clamps.

``attach()`` was forgotten or is to another optimizer, or nobody kept the object that clamps.
"""

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from .._messages import warn_caller
from .attachment import Attachments, follow_every_optimizer


class Holder(Protocol):
    def _clamps(self, optimizer: Optimizer) -> bool: ...
    def _watches(self, optimizer: Optimizer) -> bool: ...


# What holds each model, and the lookouts that go on after it. Both end with the model.
_holders: "weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Any]]" = weakref.WeakKeyDictionary()
_lookouts: "weakref.WeakKeyDictionary[nn.Module, list[Lookout]]" = weakref.WeakKeyDictionary()


def note_holder(model: nn.Module, holder: Any) -> None:
    _holders.setdefault(model, weakref.WeakSet()).add(holder)


class Lookout:
    """Warns once if an optimizer makes two steps of watched parameters and no clamp comes between them.

    It warns too if the object that it looks after, the holder, is gone though its attachments were not removed. It
    keeps neither the holder, nor the model, nor an optimizer alive.
    """

    def __init__(self, holder: Any, model: nn.Module, parameters: Iterable[Tensor], attachments: Attachments) -> None:
        self._holder: weakref.ref[Holder] = weakref.ref(holder)
        self._model = weakref.ref(model)
        self._parameters = {id(parameter): weakref.ref(parameter) for parameter in parameters}
        self._attachments = attachments
        self._unclamped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._is_over = False
        _lookouts.setdefault(model, []).append(self)
        follow_every_optimizer(self)

    def end(self) -> None:
        self._is_over = True
        model = self._model()
        if model is not None and self in _lookouts.get(model, ()):
            _lookouts[model].remove(self)

    def note_clamp(self) -> None:
        """Note that all watched parameters were clamped."""
        self._unclamped.clear()

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        holder = self._holder()
        if self._is_over:
            return
        if holder is None:
            self._look_for_the_holder(optimizer)
        elif not holder._clamps(optimizer) and holder._watches(optimizer):
            if optimizer in self._unclamped:
                self.end()
                warn_caller(
                    "watched parameters are trained and nothing clamps them, so earlier tasks are not protected; call "
                    "blip.attach() before you train, or blip.clamp_() after each step"
                )
            self._unclamped.add(optimizer)

    def _look_for_the_holder(self, optimizer: Optimizer) -> None:
        """Warn if the optimizer moves what an object held that is gone, and that no other holds now."""
        if not any(self._is_mine(p) for group in optimizer.param_groups for p in group["params"]):
            return
        self.end()
        model = self._model()
        is_held = model is not None and len(_holders.get(model, ())) > 0
        if self._attachments.were_not_removed and not is_held:
            warn_caller(
                "parameters are trained whose BLIP is gone, so earlier tasks are not protected; keep what BLIP(...), "
                "bitfreeze.protect(...) or hold_adapters(...) returned in a variable while you train, or call detach() "
                "of it when you are done"
            )

    def _is_mine(self, parameter: Tensor) -> bool:
        kept = self._parameters.get(id(parameter))
        return kept is not None and kept() is parameter

    def after(self, optimizer: Optimizer, *_: object) -> None:
        """Nothing to do."""
