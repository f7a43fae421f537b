"""The watched tensors of a model, each with a state. They follow a model whose parameters appear, move and go."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..model.parameters import Slot, Watch, find_parameters, require_finite, require_float
from ..model.ranks import Ranks
from ..model.shards import WHOLE, Layout, is_sharded, layout_of, reshard
from .growth import has_grown


@dataclass
class WatchedTensor(ABC):
    """State of one watched parameter. Where the parameter is sharded over ranks, each rank keeps that of its shard."""

    slot: Slot
    layout: Layout = field(default=WHOLE, kw_only=True)
    tasks: int = field(default=0, kw_only=True)
    health: Tensor | float = field(default=0.0, kw_only=True)  # 0, or NaN once a step has left infinite entries

    SAVED: ClassVar[tuple[str, ...]] = ()  # fields that are saved: numbers
    TENSORS: ClassVar[tuple[str, ...]] = ()  # fields that are saved: tensors in the layout of the parameter
    CACHES: ClassVar[tuple[str, ...]] = ()  # fields that follow from the others

    @property
    def local(self) -> Tensor:
        """Entries of the parameter that this process holds."""
        return self.layout.local(self.slot.parameter)

    @abstractmethod
    def hold_(self) -> None:
        """Move the parameter into its interval. A second call changes nothing."""

    @abstractmethod
    def outside(self) -> tuple[int, float]:
        """Number of entries outside their interval, and their largest distance from it."""

    @abstractmethod
    def interval(self) -> tuple[Any, Any]:
        """Lower and upper end of each entry's interval."""

    @abstractmethod
    def frozen_bits(self) -> Tensor:
        """Number of frozen leading bits of each entry."""

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of the state that are there."""
        found = {name: getattr(self, name) for name in self.TENSORS}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def shape(self) -> torch.Size | None:
        """Shape of the parameter when its first task ended, None before."""
        return next((self.layout.wrapped(tensor).shape for tensor in self.tensors().values()), None)

    @property
    def has_other_shape(self) -> bool:
        """Whether the parameter has another shape than when its last task ended."""
        kept = next(iter(self.tensors().values()), None)
        return kept is not None and self.slot.find() is not None and kept.shape != self.local.shape

    def rebind(self, slot: Slot) -> None:
        """Follow the parameter to another place. It may have become sharded, or whole again."""
        layout = slot.layout
        if layout.sharded != self.layout.sharded:
            for name, tensor in self.tensors().items():
                setattr(self, name, layout.part(self.layout.full(tensor)))
            self.forget_caches()
        self.slot, self.layout = slot, layout

    def follow(self, device: torch.device) -> None:
        """Move the state to the device of the parameter."""
        for name, tensor in self.tensors().items():
            if tensor.device != device:
                setattr(self, name, tensor.to(device))
                self.forget_caches()

    def forget_caches(self) -> None:
        for name in self.CACHES:
            setattr(self, name, None)

    def note_health(self, values: Tensor) -> None:
        """Note values that are not finite, before a clamp hides them. No step waits for the sum: 0 * inf stays NaN."""
        if isinstance(self.health, Tensor):
            self.health = self.health.to(values.device)
        self.health = 0 * values.sum() + self.health

    def take_sickness(self) -> bool:
        """Whether a step since the last call of this left entries that were not finite."""
        sick, self.health = float(self.health) != 0, 0.0
        return sick

    def is_untouched(self) -> bool:
        """Whether the state knows that nobody has changed the parameter since it last did itself."""
        return False

    def note_untouched(self) -> None:  # noqa: B027 - most states do not ask
        """Note that the parameter is as the state last left it: it was put back there."""

    def take_from_first_(self, ranks: Ranks) -> None:
        """Copy rank 0's state to all ranks, which could differ by rounding. A shard keeps that of its own rank."""
        if not self.layout.sharded:
            for tensor in self.tensors().values():
                ranks.broadcast_(tensor)

    def nbytes(self, cache: bool) -> int:
        held = list(self.tensors().values())
        for name in self.CACHES if cache else ():
            kept = getattr(self, name)
            held += [] if kept is None else list(kept) if isinstance(kept, tuple) else [kept]
        return sum(tensor.nbytes for tensor in held)

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        """State of the tensor: whole tensors, or ``sharded`` like the parameter."""
        laid_out = self.layout.wrapped if sharded else self.layout.full
        numbers = {name: getattr(self, name) for name in (*self.SAVED, "tasks")}
        return {**numbers, **{name: laid_out(tensor.clone()) for name, tensor in self.tensors().items()}}

    def loaded(self, saved: Mapping[str, Any]) -> Self:
        """The state with saved values, copied to the device of the parameter."""
        empty: dict[str, Any] = dict.fromkeys((*self.TENSORS, *self.CACHES))
        device = self.local.device
        values = {k: self._part(v).to(device, copy=True) if isinstance(v, Tensor) else v for k, v in saved.items()}
        return replace(self, **{**empty, **values})

    def _part(self, saved: Tensor) -> Tensor:
        return layout_of(saved).local(saved) if is_sharded(saved) else self.layout.part(saved)


S = TypeVar("S", bound=WatchedTensor)


class WatchedTensors(ABC, Generic[S]):
    """States of the watched parameters, by name."""

    def __init__(self, model: nn.Module, watch: Watch) -> None:
        self.model, self.watch = model, watch
        self.states: dict[str, S] = {}
        self.absent: dict[str, S] = {}  # states of parameters that the model does not have just now
        self.modules: list[nn.Module] = []  # modules of the model when its parameters were last looked for
        require_float(self.slots())

    @abstractmethod
    def new_state(self, slot: Slot) -> S:
        """State of a parameter that has not ended a task."""

    @abstractmethod
    def absent_state(self, slot: Slot, saved: dict[str, Any]) -> S:
        """Saved state of a parameter that the model does not have."""

    @abstractmethod
    def grown_state(self, state: S, slot: Slot) -> S:
        """A new state of a tensor that has more rows now. They begin free, and the first rows keep what they have."""

    @abstractmethod
    def require_same_rows(self, grown: Mapping[str, tuple[S, S]]) -> None:
        """Refuse tensors whose first rows are not those that the last task left: (state before, state now) by name."""

    def slots(self) -> list[Slot]:
        return find_parameters(self.model, self.watch)

    def current(self) -> dict[str, S]:
        """States of the watched parameters. Some may be new, or have another name or module than before."""
        slots, known = self.slots(), {**self.absent, **self.states}
        names = {slot.name for slot in slots}
        nameless = {id(state.slot.held): state for name, state in known.items() if name not in names}
        found = {s.name: known.get(s.name) or nameless.get(id(s.held)) or self.new_state(s) for s in slots}
        states = self.with_growth(found, slots)
        for slot in slots:
            states[slot.name].rebind(slot)
        return states

    def with_growth(self, states: dict[str, S], slots: Iterable[Slot]) -> dict[str, S]:
        """These states, and new ones of the tensors that have grown. The old ones stay as they are."""
        grown = {}
        for slot in slots:
            state = states.get(slot.name)
            if state is None or state.shape is None:
                continue
            if has_grown(slot, state.shape, sharded=state.layout.sharded):
                require_finite(slot)
                grown[slot.name] = state, self.grown_state(state, slot)
        if grown:
            self.require_same_rows(grown)
        return {**states, **{name: now for name, (_, now) in grown.items()}}

    def bind(self) -> None:
        """Look for the watched parameters anew. From here on their bounds are fixed."""
        require_float(self.slots())
        current = self.current()
        kept = {id(state) for state in current.values()}
        gone = {name: s for name, s in {**self.absent, **self.states}.items() if id(s) not in kept}
        self.absent = {name: s for name, s in gone.items() if name not in current and s.shape is not None}
        self.states, self.modules = current, list(self.model.modules())

    def bind_if_changed(self) -> None:
        """Bind if modules came or went since the last time, or a tensor got another shape."""
        reshaped = any(state.has_other_shape for state in self.states.values())
        if not self.states or reshaped or self.modules != list(self.model.modules()):
            self.bind()

    def bind_if_moved(self) -> None:
        """Bind if a parameter was pruned or parametrised: it has another place and name, or is gone."""
        if any(state.slot.find() is None for state in self.states.values()):
            self.bind()
        if any(state.layout.sharded for state in self.states.values()):
            reshard(self.model)

    def held_by(self, optimizer: Optimizer) -> list[S]:
        """States of the parameters that an optimizer steps."""
        return _held_by(optimizer, self.states)

    def is_stepped_by(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer steps a parameter of the model, watched or not."""
        mine = {id(parameter) for parameter in self.model.parameters()}
        return any(id(p) in mine for group in optimizer.param_groups for p in group["params"])

    def require_watched(self, optimizer: Optimizer) -> Optimizer:
        if not _held_by(optimizer, self.current()):
            raise ValueError(
                "the optimizer must hold a watched parameter, got one that holds none; build it from this model's "
                "parameters, or call attach() without an optimizer"
            )
        return optimizer

    def moves_weights(self, outside: str) -> bool:
        """Whether the end of a task may move weights."""
        return True

    def parts(self) -> Iterable[Any]:
        """Objects that hold state besides those of single tensors."""
        return ()

    def held_by_entry(self) -> dict[str, S]:
        """States of the parameters that are held entry by entry."""
        return self.current()

    def frozen_bits(self) -> dict[str, Tensor]:
        """Frozen bits of each entry of each parameter."""
        return {name: state.frozen_bits() for name, state in self.current().items()}

    def nbytes(self, cache: bool) -> int:
        return sum(state.nbytes(cache) for state in (*self.states.values(), *self.absent.values()))

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        return {
            "tensors": {name: state.state_dict(sharded) for name, state in self.states.items()},
            "absent": {name: state.state_dict(sharded) for name, state in self.absent.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], new_names: Callable[[str], str]) -> None:
        slots = {slot.name: slot for slot in self.slots()}
        self._require_same_model(slots, {new_names(name): saved for name, saved in state["tensors"].items()})
        absent = {
            new_names(name): self.absent_state(Slot(new_names(name)), saved) for name, saved in state["absent"].items()
        }
        states = {
            new_names(name): self.new_state(slots[new_names(name)]).loaded(saved)
            for name, saved in state["tensors"].items()
        }
        self.states = self.with_growth(states, slots.values())
        self.absent = absent

    @staticmethod
    def _require_same_model(slots: dict[str, Slot], tensors: dict[str, dict[str, Any]]) -> None:
        missing = sorted(set(tensors) - set(slots))
        if missing:
            raise ValueError(
                f"the state must be of this model, got one with '{missing[0]}', which is not watched here; use rename= "
                "if the parameter has another name now"
            )
        for name, saved in tensors.items():
            shapes = [value.shape for value in saved.values() if isinstance(value, Tensor)]
            try:
                if shapes:
                    has_grown(slots[name], shapes[0], sharded=False)
            except ValueError:
                raise ValueError(
                    f"the state must be of this model, got '{name}' of shape {list(shapes[0])}, which has the shape "
                    f"{list(slots[name].parameter.shape)} here"
                ) from None


def _held_by(optimizer: Optimizer, states: Mapping[str, S]) -> list[S]:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [state for state in states.values() if id(state.slot.find()) in held]
