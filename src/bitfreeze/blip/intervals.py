"""Intervals of all watched parameters, weight by weight: found in the model, held after steps, saved and loaded."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..model.parameters import Slot, Watch, find_parameters, require_float, require_same_shape
from ..model.shards import reshard
from .bounds import bound_and_prior_scale
from .checks import renamed, require_same_model
from .rules import Rules
from .tensor_state import TensorState, find_companions

States = dict[str, TensorState]


class Intervals:
    """States of the watched parameters, by name. They follow a model whose parameters appear, move and go."""

    def __init__(self, model: nn.Module, watch: Watch, depth: int, bound: float, rules: Rules) -> None:
        self.model, self.watch = model, watch
        self.depth, self.bound, self.rules = depth, bound, rules
        self.states: States = {}
        self.absent: States = {}  # states of parameters that the model does not have just now
        self.modules: list[nn.Module] = []  # modules of the model when its parameters were last looked for
        require_float(self.slots())

    def slots(self) -> list[Slot]:
        return find_parameters(self.model, self.watch)

    def current(self) -> States:
        """States of the watched parameters. Some may be new, or have another name or module than before."""
        slots, known = self.slots(), {**self.absent, **self.states}
        names = {slot.name for slot in slots}
        nameless = {id(state.slot.held): state for name, state in known.items() if name not in names}
        states = {}
        for slot in slots:
            state = known.get(slot.name) or nameless.get(id(slot.held)) or self._new_state(slot)
            if state.bits is not None:
                require_same_shape(slot, state.layout.wrapped(state.bits).shape)
            state.rebind(slot)
            states[slot.name] = state
        return states

    def bind(self) -> None:
        """Look for the watched parameters anew. From here on their bounds are fixed."""
        require_float(self.slots())
        current = self.current()
        kept = {id(state) for state in current.values()}
        known = {**self.absent, **self.states}
        self.absent = {name: s for name, s in known.items() if id(s) not in kept and s.bits is not None}
        self.states, self.modules = current, list(self.model.modules())
        find_companions(current.values())

    def bind_if_changed(self) -> None:
        """Bind if modules came or went since the last time."""
        if not self.states or self.modules != list(self.model.modules()):
            self.bind()

    def held_by(self, optimizer: Optimizer) -> list[TensorState]:
        """States of the parameters that an optimizer steps."""
        return _held_by(optimizer, self.states)

    def require_watched(self, optimizer: Optimizer) -> Optimizer:
        if not _held_by(optimizer, self.current()):
            raise ValueError(
                "the optimizer must hold a watched parameter, got one that holds none; build it from this model's "
                "parameters, or call attach() without an optimizer"
            )
        return optimizer

    def hold_(self, optimizer: Optimizer | None = None) -> bool:
        """Clamp the parameters that ``optimizer`` steps, or all. Returns whether there were any."""
        # a parameter that was pruned or parametrised has another place and name, or is gone
        if any(state.slot.find() is None for state in self.states.values()):
            self.bind()
        if any(state.layout.sharded for state in self.states.values()):
            reshard(self.model)
        held = list(self.states.values()) if optimizer is None else self.held_by(optimizer)
        for state in held:
            state.after_step_()
        return bool(held)

    def widen(self) -> None:
        """Widen bounds for weights that were loaded between attach() and the first step, so that none is clipped."""
        for name, state in self.states.items():
            if state.bits is None and state.slot.find() is not None and state.layout.largest(state.outside()[0]):
                self.states[name] = self._new_state(state.slot)

    def nbytes(self, cache: bool) -> int:
        return sum(state.nbytes(cache) for state in (*self.states.values(), *self.absent.values()))

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        return {
            "tensors": {name: state.state_dict(sharded) for name, state in self.states.items()},
            "absent": {name: state.state_dict(sharded) for name, state in self.absent.items()},
        }

    def load_state_dict(
        self, state: Mapping[str, Any], rename: Mapping[str, str] | Callable[[str], str] | None
    ) -> None:
        slots = {slot.name: slot for slot in self.slots()}
        new_names = renamed([*state["tensors"], *state["absent"]], rename)
        require_same_model(slots, {new_names[name]: saved for name, saved in state["tensors"].items()})
        absent = {
            new_names[name]: TensorState(Slot(new_names[name]), self.depth, self.rules, **saved)
            for name, saved in state["absent"].items()
        }
        self.states = {
            new_names[name]: self._new_state(slots[new_names[name]]).loaded(saved)
            for name, saved in state["tensors"].items()
        }
        self.absent = absent

    def _new_state(self, slot: Slot) -> TensorState:
        if slot.layout.sharded and self.rules.straight_through:
            raise ValueError(
                f"straight-through rules need whole parameters, got '{slot.name}' sharded over ranks; use other rules, "
                "or DDP"
            )
        bound, scale = bound_and_prior_scale(slot, self.bound, self.depth, self.rules)
        return TensorState(slot, self.depth, self.rules, bound, scale, slot.layout)


def _held_by(optimizer: Optimizer, states: States) -> list[TensorState]:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [state for state in states.values() if id(state.slot.find()) in held]
