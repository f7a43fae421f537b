"""Directions: a guard that holds layers along the directions that their data use, and other tensors entry by entry.

At a task's end a first pass over the data finds the directions of each layer's inputs and output gradients, a second
one the Fisher of the weights along them. A coordinate with Fisher F may move by sqrt(F_0 / F), so that at its edge it
costs the earlier tasks F_0 / 2 nats a sample. F_0 follows from the tolerance: all K coordinates at their edges cost
F_0 K / 2, times a measured factor. While a task stays below its tolerance, intervals widen (widening.py).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..fisher.measuring import NOT_USED
from ..model.parameters import Slot, Watch, require_float, require_same_shape
from ..model.ranks import Ranks, current_ranks
from . import checks, pacing
from .bounds import bound_of
from .finding import find_directions, measure_along
from .growth import OtherRows
from .guards import Look, Measured
from .held_tensor import HeldTensor, bits_of
from .joined_layers import come_apart, fits, joined_layers, names_of
from .rules import DirectionRules
from .task_end import TaskEnd
from .turned_layer import TurnedLayer
from .turning import Turning
from .watched import WatchedTensors
from .widening import Widening

# Nats that earlier tasks really lose, by the quadratic estimate, where tasks are hard (results/drift.md): the Fisher is
# that of training samples, which a network is surer of than of others.
DRIFT_FACTOR = 5.0
FAR_OUTSIDE = 3  # tolerances: weights restored from between two clamps may cost somewhat more than one


class Directions(WatchedTensors[HeldTensor]):
    """Coordinates of the watched layers, and intervals of all other watched parameters."""

    passes = 2

    def __init__(
        self, model: nn.Module, watch: Watch, rules: DirectionRules, *, depth: int, bound: float, tolerance: float
    ) -> None:
        self.rules, self.depth, self.bound, self.tolerance = rules, depth, bound, tolerance
        self.prior: float | None = None  # F_0, from the first task on
        self.positions = 1.0  # predicted positions a sample, in the first task
        self.turnings: dict[str, Turning] = {}  # by the name of a layer's weight
        self.layers: dict[str, TurnedLayer] = {}  # the same, bound to the model
        self.cost_inside = 0.0  # quadratic cost when a task ended, with all weights in their intervals
        self.widening = Widening()
        self.stepped: set[str] = set()  # layers that were stepped since the width was set
        self.clamped: set[str] = set()  # layers that were clamped along all directions since then
        self.unread_steps = 0  # steps since the host last read what clamps have cost
        super().__init__(model, watch)

    @property
    def settings(self) -> dict[str, Any]:
        return {"bits": self.depth, "bound": self.bound, "tolerance": self.tolerance}

    def new_state(self, slot: Slot) -> HeldTensor:
        return HeldTensor(slot, self.depth, bound_of(slot, self.bound, self.depth), layout=slot.layout)

    def grown_state(self, state: HeldTensor, slot: Slot) -> HeldTensor:
        return state.grown(slot)

    def require_same_rows(self, grown: Mapping[str, tuple[HeldTensor, HeldTensor]]) -> None:
        assert self.prior is not None  # a task has ended, else no state would have a shape
        now = {name: state for name, (_, state) in grown.items()}
        joined = {name: parts for name, parts in joined_layers(now).items() if name in self.turnings}
        in_layers = {part for parts in joined.values() for part in names_of(parts)[1:]}
        for name, (before, state) in grown.items():
            assert before.shape is not None
            turning = self.turnings.get(name)
            held: HeldTensor | TurnedLayer = state
            if turning is not None:
                turning = turning.on(state.local.device).with_outputs(len(turning.by_rows(state.local)))
                if name not in joined or not fits(turning, joined[name]):  # the bias came, went, or did not grow
                    require_same_shape(state.slot, before.shape)
                held = TurnedLayer(*joined[name], turning, self.prior)
            cost = 0.0 if name in in_layers else float(held.cost()) / self.positions
            if not DRIFT_FACTOR * cost <= FAR_OUTSIDE * self.tolerance:
                raise OtherRows(state.slot, before.shape[0])

    def absent_state(self, slot: Slot, saved: dict[str, Any]) -> HeldTensor:
        return HeldTensor(slot, self.depth, prior=self.prior, **saved)

    # training

    def bind(self) -> None:
        known = {**self.absent, **self.states}
        weights = {name: known.get(name) for name in self.turnings}
        super().bind()
        for state in self.states.values():
            state.follow(state.local.device)
        names = {id(state): name for name, state in self.states.items()}
        moved = {name: names.get(id(weight), name) for name, weight in weights.items()}
        self.turnings = {moved[name]: turning for name, turning in self.turnings.items()}
        self._bind_layers({moved[name]: layer for name, layer in self.layers.items()})

    def _bind_layers(self, former: Mapping[str, TurnedLayer]) -> None:
        """Find the weight and bias of each set of coordinates. A layer that came apart is held entry by entry."""
        self.layers = {}
        joined = joined_layers(self.states)
        for name, turning in list(self.turnings.items()):
            assert self.prior is not None
            if name in joined:
                turning = turning.with_outputs(len(turning.by_rows(joined[name][0].local)))
            if name in joined and fits(turning, joined[name]):
                layer, turning = former.get(name), turning.on(joined[name][0].local.device)
                self.turnings[name] = turning
                paces = () if layer is None else pacing.progress_of(layer)
                self.layers[name] = TurnedLayer(*joined[name], turning, self.prior, *paces)
            elif name in self.states:
                del self.turnings[name]
                come_apart({**self.absent, **self.states}, name, turning, former.get(name))

    @torch.no_grad()
    def hold_(self, optimizer: Optimizer | None = None) -> bool:
        self.bind_if_moved()
        held = list(self.states.values()) if optimizer is None else self.held_by(optimizer)
        if not held:
            return False  # a step of another model
        require_float([state.slot for state in held])
        for state in held:
            state.require_shape()
        self._hold_within_width(held, now=optimizer is None)
        self.widening.steps += optimizer is not None
        if optimizer is None:
            # the cost may have grown within intervals that are too wide now
            while self._widens() and self._widen(sum(float(state.cost()) for state in self._alone())):
                self._hold_within_width(held, now=True)
        elif self._is_time_to_read(held):
            self._read_costs()
        for state in held if optimizer is not None else ():
            state.note_seen()
        return True

    def _hold_within_width(self, held: list[HeldTensor], *, now: bool) -> None:
        """Clamp these tensors with the width in force: all ``now``, or layers when it is time to."""
        stepped, in_layers = {id(state) for state in held}, set[int]()
        for name, layer in self.layers.items():
            if any(id(part) in stepped for part in layer.parts):
                in_layers.update(id(part) for part in layer.parts)
                self._hold_layer(layer, now=now)
                self.stepped.add(name)
                if not layer.since:
                    self.clamped.add(name)
        for state in held:
            if id(state) not in in_layers:
                state.hold_()

    def _hold_layer(self, layer: TurnedLayer, *, now: bool) -> None:
        layer.follow()
        if now:
            layer.hold_()
        else:
            often = pacing.times_as_often(layer)
            layer.after_step_(self.rules.leading, max(1, self.rules.leading_every // often))

    def _is_time_to_read(self, held: list[HeldTensor]) -> bool:
        """Whether the host reads what clamps have cost: after each step on a CPU, else rarely, because it waits."""
        self.unread_steps += 1
        due = self.unread_steps >= pacing.READ_EVERY or all(state.local.is_cpu for state in held)
        self.unread_steps = 0 if due else self.unread_steps
        return due

    def _read_costs(self) -> None:
        """Let paces and the width follow what the last clamps have cost."""
        # all that moved was clamped, so that its cost is known
        known = bool(self.stepped) and self.stepped <= self.clamped and self._widens()
        alone = pacing.settle(self.layers, self._alone() if known else (), self.rules.every)
        if known:
            self._widen(alone)

    def _widens(self) -> bool:
        """Whether intervals may widen: not before the first task, and not with shards, each a part of the cost."""
        return self.prior is not None and not any(state.layout.sharded for state in self.states.values())

    def _alone(self) -> list[HeldTensor]:
        """States of the tensors that are held entry by entry."""
        in_layers = {id(part) for layer in self.layers.values() for part in layer.parts}
        return [state for state in self.states.values() if id(state) not in in_layers]

    def _widen(self, alone: float) -> bool:
        """Set the width of all intervals by what the task has cost so far. Returns whether they are narrower now.

        ``alone`` is the cost of the tensors that are held entry by entry.
        """
        cost = sum(layer.spent for layer in self.layers.values()) + alone
        width = self.widening.width
        self.widening.set(DRIFT_FACTOR * cost / (self.positions * self.tolerance))
        self.stepped, self.clamped = set(), set()
        for state in self.states.values():
            state.width = self.widening.width
        return self.widening.width < width

    def set_width(self, width: float) -> None:
        """Take a width for all intervals, in place of the one in force."""
        self._set_widening(Widening(width))

    def _set_widening(self, widening: Widening) -> None:
        self.widening = widening
        for state in self.states.values():
            state.width = widening.width

    def before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """Nothing to do."""

    def begin_training(self) -> None:
        """Nothing to do: no bound clips a weight."""

    # what is held

    def _follow(self) -> None:
        """Bind if modules or parameters came, went or moved since the last task."""
        if self.turnings:
            self.bind_if_changed()
            self.bind_if_moved()
            for layer in self.layers.values():
                layer.follow()

    def held_by_entry(self) -> dict[str, HeldTensor]:
        self._follow()
        in_layers = {part.slot.name for layer in self.layers.values() for part in layer.parts}
        return {name: state for name, state in self.current().items() if name not in in_layers}

    def frozen_bits(self) -> dict[str, Tensor]:
        self._follow()
        bits = super().frozen_bits()
        for layer in self.layers.values():
            for part, fisher in zip(layer.parts, layer.fisher_of_entries(), strict=True):
                bits[part.slot.name] = bits_of(fisher, layer.prior, part.bound, part.depth)
        return bits

    # what was lost

    def drift(self) -> float:
        """Estimated nats a sample that the earlier tasks have lost since the last one ended."""
        return DRIFT_FACTOR * self.quadratic_cost()

    def drift_inside(self) -> float:
        """``drift()`` right after ``require_inside``, which knows it."""
        return DRIFT_FACTOR * self.cost_inside

    def quadratic_cost(self, *, clamped: bool = False) -> float:
        """Half the sum of Fisher times squared change, in nats a sample: the loss where log p is quadratic.

        If all layers were ``clamped`` just now, their costs are known. Where parameters are sharded over ranks, all
        ranks call this together.
        """
        self._follow()
        alone = self._alone()
        ranks = current_ranks(any(state.layout.sharded for state in alone))
        layers = self.layers.values() if ranks.leads else ()
        costs: list[Tensor | float] = [layer.spent if clamped else layer.cost() for layer in layers]
        costs += [state.cost().cpu() for state in alone if state.layout.counts_here(ranks)]
        return float(sum(ranks.gather(float(sum(costs))))) / self.positions

    def require_own_weights(self) -> None:
        """Refuse weights that the last task did not leave."""
        self._follow()
        for state in self.states.values():
            state.require_shape()
        lost = self.drift()
        if lost > FAR_OUTSIDE * self.tolerance:
            raise checks.OtherWeights(
                f"the weights must be those that the last task left, got others, which cost the earlier tasks about "
                f"{lost:.2g} nats; restore weights before you consolidate, load those that belong to a loaded state, "
                "or call blip.clamp_() to move them back"
            )

    def moves_weights(self, outside: str) -> bool:
        return self.prior is not None

    def parts(self) -> Iterable[Any]:
        return (*self.layers.values(), self.widening)

    def require_inside(self, outside: str, trained: bool, likely_cause: str) -> None:
        """Move weights into their intervals.

        Between two clamps along all directions, training may leave the intervals. Weights that were not trained, or
        were edited after the last step, and cost more than all coordinates at their edges would, are refused, unless
        ``outside`` is "mend".
        """
        checks.require_outside(outside)
        self.cost_inside = 0.0
        if self.prior is None:
            return
        edited = any(state.was_edited for state in self.states.values())
        doubtful = edited or not trained or any(state.layout.sharded for state in self.states.values())
        lost = self.drift() if outside == "raise" and doubtful else 0.0
        if lost > FAR_OUTSIDE * self.tolerance and (edited or not trained):
            raise RuntimeError(
                f"the weights must lie in their intervals, got weights that cost the earlier tasks about {lost:.2g} "
                f"nats, far above the tolerance of {self.tolerance:g}: {likely_cause}; or pass outside='mend' to clamp "
                "them now"
            )
        before_clamp = [(layer, pacing.progress_of(layer)) for layer in self.layers.values()]
        widening = replace(self.widening)
        self.hold_()
        self.cost_inside = self.quadratic_cost(clamped=True)
        for layer, progress in before_clamp:  # because the edges of this task are counted with it
            pacing.set_progress(layer, progress)
        self._set_widening(widening)

    # the end of a task

    def measure(self, look: Look, ranks: Ranks) -> Measured:
        layers = joined_layers(self.states)
        turns, reasons = find_directions(layers, self.turnings, self.states, self.rules, look, ranks)
        turns, estimate, found = measure_along(layers, turns, reasons, look)
        positions = estimate.positions if self.prior is None else self.positions
        entries = sum(state.slot.parameter.numel() for state in self.states.values())
        prior = 2 * self.tolerance * positions / (DRIFT_FACTOR * max(1, entries))
        prior = prior if self.prior is None else min(self.prior, prior)  # a larger model has more to share it out to
        unused = [name for name, reason in reasons.items() if reason == NOT_USED and name in self.turnings]
        idle = [name for name in unused if not any(estimate.values[part].any() for part in names_of(layers[name]))]
        why = {part: reason for name, reason in reasons.items() for part in names_of(layers[name])}
        apart = [layer for name, layer in self.layers.items() if name not in turns and name not in idle]
        end = TaskEnd(self.states, self.turnings, apart, prior, self.rules.damping, self.rules.fisher, ranks)
        for name, turning in turns.items():
            end.add_layer(name, *layers[name], turning, found[name], self.layers.get(name))
        for name in idle:
            end.add_idle_layer(name, *layers[name])
        for name, state in self.states.items():
            if name not in end.states:
                way = estimate.ways[name]
                if why.get(name, NOT_USED) != NOT_USED:
                    way = f"{way}, not along directions: {why[name]}"
                end.add_tensor(name, state, estimate.values[name], way)
        return end.measured(estimate, positions)

    def commit(self, measured: Measured) -> None:
        self.states, self.turnings, self.prior, self.positions = measured.after
        for state in self.states.values():
            state.note_seen()
        self._bind_layers({})  # a new task begins at pace 1 and with width 1
        self.widening, self.stepped, self.clamped, self.unread_steps = Widening(), set(), set(), 0

    # saving

    def nbytes(self, cache: bool) -> int:
        turned = sum(tensor.nbytes for turning in self.turnings.values() for tensor in turning.tensors().values())
        caches = sum(layer.cache_bytes() for layer in self.layers.values()) if cache else 0
        return super().nbytes(cache) + turned + caches

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        return {
            "prior": self.prior,
            "positions": self.positions,
            "directions": {name: turning.state_dict() for name, turning in self.turnings.items()},
            **pacing.state_of(self.layers),
            "unread_steps": self.unread_steps,
            "width": [self.widening.width, self.widening.steps],
            "stepped": sorted(self.stepped),
            "clamped": sorted(self.clamped),
            **super().state_dict(sharded),
        }

    def load_state_dict(self, state: Mapping[str, Any], new_name: Callable[[str], str]) -> None:
        turnings = {new_name(name): Turning.loaded(saved) for name, saved in state["directions"].items()}
        self.prior, self.positions, self.turnings = state["prior"], state["positions"], turnings
        super().load_state_dict(state, new_name)
        for held in (*self.states.values(), *self.absent.values()):
            held.prior = self.prior
        self._bind_layers({})
        pacing.load_state(self.layers, state, new_name)
        self.unread_steps = state["unread_steps"]
        self._set_widening(Widening(*state["width"]))
        self.stepped, self.clamped = ({new_name(n) for n in state[key]} for key in ("stepped", "clamped"))
