"""What a call that is stopped puts back: a BLIP and the weights that it watches, as they were before the call."""

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ..model.parameters import Slot
from . import checks
from .watched import WatchedTensor, WatchedTensors

if TYPE_CHECKING:
    from .blip import BLIP


class Memento:
    """All that a BLIP has stored, taken before a call. As a context it puts it back, unless ``done`` is set inside.

    Enter it twice (see model/undo.py). Tensors of a state are never changed in place, so references are enough;
    weights are copied where the call may move them.
    """

    def __init__(self, blip: "BLIP", moves_weights: bool, modules: list[nn.Module]) -> None:
        self.done = False
        self.kept = [(each, {key: _own(value) for key, value in vars(each).items()}) for each in _parts(blip)]
        tensors = blip._tensors
        # weights, and their state if it knew that nobody had changed them
        self.weights: list[tuple[Slot, Tensor, WatchedTensor | None]] = []
        known = {id(state.slot.find()): state for state in tensors.states.values() if state.slot.find() is not None}
        for slot in tensors.slots() if moves_weights else ():  # a module may have been replaced since the last look
            if not isinstance(slot.parameter, UninitializedParameter):
                state = known.get(id(slot.parameter))
                untouched = state if state is not None and state.is_untouched() else None
                self.weights.append((slot, slot.local.detach().clone(), untouched))
        self.modules = [(module, vars(module).get("train"), module.training) for module in modules]

    def __enter__(self) -> "Memento":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.done:
            self.put_back(keep_health=not isinstance(error, checks.SickWeights))

    @torch.no_grad()
    def put_back(self, keep_health: bool = True) -> None:
        for each, values in self.kept:
            told = {key: _own(value) for key, value in values.items() if keep_health or key != "health"}
            vars(each).update(told)
        for slot, value, untouched in self.weights:
            if not torch.equal(slot.local, value):
                slot.local.copy_(value)
                if untouched is not None:
                    untouched.note_untouched()
        for module, train, training in self.modules:
            vars(module).pop("train", None)
            vars(module).update({"train": train} if train is not None else {})
            module.training = training


def _parts(blip: "BLIP") -> Iterator[Any]:
    """The BLIP and all objects that it stores its state in."""
    yield blip
    yield from blip._attachments
    for guard in blip._guards:
        yield guard
        if isinstance(guard, WatchedTensors):
            yield from (*guard.states.values(), *guard.absent.values())
            yield from guard.parts()


def _own(value: Any) -> Any:
    """A copy of a container, whose entries are the same; any other value itself."""
    return value.copy() if type(value) in (dict, list, set) else value
