"""Intervals: a guard that holds each watched parameter by itself, as the paper does."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..model.parameters import Slot, Watch
from ..model.ranks import Ranks
from . import checks
from .bounds import bound_and_prior_scale
from .budget import prior_of_first_task
from .consolidation import report_tensors
from .growth import OtherRows, begins_with
from .guards import Look, Measured
from .rules import WeightRules
from .tensor_state import TensorState
from .watched import WatchedTensors


class Intervals(WatchedTensors[TensorState]):
    """Intervals of all watched parameters, weight by weight."""

    passes = 1

    def __init__(
        self,
        model: nn.Module,
        watch: Watch,
        rules: WeightRules,
        *,
        depth: int,
        bound: float,
        budget: float,
        prior: float | None,
    ) -> None:
        self.depth, self.bound, self.rules, self.budget, self.given_prior = depth, bound, rules, budget, prior
        self.prior = prior  # the one in force: given, or solved for at the first consolidate
        super().__init__(model, watch)

    @property
    def settings(self) -> dict[str, Any]:
        measure = {"budget": self.budget} if self.given_prior is None else {"prior": self.given_prior}
        return {"bits": self.depth, "bound": self.bound, **measure}

    # training

    def before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """Straight-through rules only: give the optimizer the unrounded parameters."""
        held = self.held_by(optimizer) if self.rules.straight_through else []
        if held and has_closure:
            raise ValueError(
                "with straight-through rules the passes must come before the step, not in a closure; call backward() "
                "first, then step()"
            )
        for state in held:
            state.before_step_()

    def hold_(self, optimizer: Optimizer | None = None) -> bool:
        self.bind_if_moved()
        held = list(self.states.values()) if optimizer is None else self.held_by(optimizer)
        for state in held:
            state.hold_()
        return bool(held)

    def begin_training(self) -> None:
        """Widen bounds for weights that were loaded between attach() and the first step, so that none is clipped."""
        for name, state in self.states.items():
            if state.bits is None and state.slot.find() is not None and state.layout.largest(state.outside()[0]):
                self.states[name] = self.new_state(state.slot)

    def require_own_weights(self) -> None:
        checks.require_own_weights(self.states, self.rules)

    def require_inside(self, outside: str, trained: bool, likely_cause: str) -> None:
        checks.require_inside(self.states, self.rules, outside, likely_cause)

    def moves_weights(self, outside: str) -> bool:
        return self.rules.snap or self.rules.centre_rule.may_exclude or outside == "mend"

    def drift(self) -> None:
        """None: a diagonal Fisher does not see what weights that move together change."""

    def drift_inside(self) -> None:
        """Unknown, as ``drift()``."""

    # the end of a task

    def measure(self, look: Look, ranks: Ranks) -> Measured:
        estimate = look()
        prior = self.prior
        if prior is None:
            gain = self.rules.gain
            prior = prior_of_first_task(self.states, estimate.values, self.budget, self.depth, gain, ranks)
        after = {name: state.after_task(estimate.values[name], prior) for name, state in self.states.items()}
        for state in after.values():
            state.take_from_first_(ranks)
        reports, histogram = report_tensors(self.states, after, estimate.values, estimate.ways, ranks)
        return Measured((after, prior), reports, histogram, estimate)

    def commit(self, measured: Measured) -> None:
        self.states, self.prior = measured.after
        for state in self.states.values():
            state.snap_()

    # saving

    def new_state(self, slot: Slot) -> TensorState:
        if slot.layout.sharded and self.rules.straight_through:
            raise ValueError(
                f"straight-through rules need whole parameters, got '{slot.name}' sharded over ranks; use other rules, "
                "or DDP"
            )
        bound, scale = bound_and_prior_scale(slot, self.bound, self.depth, self.rules)
        return TensorState(slot, self.depth, self.rules, bound, scale, layout=slot.layout)

    def grown_state(self, state: TensorState, slot: Slot) -> TensorState:
        assert self.prior is not None  # a task has ended, else the state would have no shape
        return state.grown(slot, self.prior)

    def require_same_rows(self, grown: Mapping[str, tuple[TensorState, TensorState]]) -> None:
        for name, (before, now) in grown.items():
            assert before.shape is not None
            rows, outside = before.shape[0], now.distance() > now.slack
            if outside[:rows].any() and not begins_with(now.local, before.slot.held, before.shape):
                raise OtherRows(now.slot, rows)
            if outside[rows:].any():
                raise ValueError(
                    f"new rows of '{name}' must lie within {now.bound:.3g} of 0, as its first rows do, got "
                    f"{now.local.detach()[rows:].abs().max():.3g}; begin with smaller values"
                )

    def absent_state(self, slot: Slot, saved: dict[str, Any]) -> TensorState:
        return TensorState(slot, self.depth, self.rules, **saved)

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        return {"prior": self.prior, **super().state_dict(sharded)}

    def load_state_dict(self, state: Any, new_name: Any) -> None:
        self.prior = state["prior"]
        super().load_state_dict(state, new_name)
