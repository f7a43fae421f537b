"""State of one parameter tensor: 9 bytes an entry, and 8 more while training for the ends of its interval."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import bits as b
from ..model.parameters import Slot, require_float, require_same_shape
from ..model.ranks import Ranks
from ..model.shards import WHOLE, Layout, is_sharded, layout_of
from .rules import CentreInputs, Rules

TENSORS = ("bits", "centre", "fisher", "residual")
SMALL, HEALTH_STEPS = 10_000, 32


@dataclass
class TensorState:
    """Frozen bits, centres and accumulated Fisher of a tensor. Before its first task ends, the state holds no tensors.

    Where a parameter is sharded over ranks, each rank keeps the state of its own shard.
    """

    slot: Slot
    depth: int
    rules: Rules
    bound: float
    prior_scale: float
    layout: Layout = WHOLE
    tasks: int = 0
    bits: Tensor | None = None  # uint8: how many leading bits are frozen
    centre: Tensor | None = None  # int32, in units of bound * 2^-depth
    fisher: Tensor | None = None  # float32: F_{0:t}
    residual: Tensor | None = None  # straight-through only: parameter minus its rounded value
    rounded_version: int = -1  # version of the parameter that the residual belongs to
    ends: tuple[Tensor, Tensor] | None = None  # cache of the interval
    steps: int = 0
    companion: bool = False  # the same module has a small tensor under watch
    health: Tensor | float = 0.0  # 0, or NaN once a step has left entries that are not finite

    @property
    def local(self) -> Tensor:
        """Entries of the parameter that this process holds."""
        return self.layout.local(self.slot.parameter)

    def rebind(self, slot: Slot) -> None:
        """Follow the parameter to another place. It may have become sharded, or whole again."""
        layout = slot.layout
        if layout.sharded != self.layout.sharded:
            for name in TENSORS:
                tensor = getattr(self, name)
                if tensor is not None:
                    setattr(self, name, layout.part(self.layout.full(tensor)))
            self.ends = None
        self.slot, self.layout = slot, layout

    # training: stay inside the interval

    @torch.no_grad()
    def before_step_(self) -> None:
        """Straight-through: put theta back for the step, where the parameter held Q(theta, N) for the passes."""
        if self.residual is not None:
            self.local.copy_(self.theta())
            self.residual = None

    @torch.no_grad()
    def after_step_(self) -> None:
        """Clamp the parameter into its interval (Eq. 4). A second call changes nothing."""
        self.before_step_()
        parameter = self.local
        self._check_health(parameter)
        low, high = self.interval()
        parameter.clamp_(low, high)
        if self.rules.straight_through:
            rounded = b.quantize(parameter, self.depth, self.bound)
            self.residual = parameter - rounded
            parameter.copy_(rounded)
            self.rounded_version = parameter._version

    def _check_health(self, parameter: Tensor) -> None:
        """Note entries that are not finite, which the clamp would hide. No step waits for the sum: 0 * inf stays NaN.

        A look costs a tenth of a step, so a large tensor with a small companion gets one only now and then. A cause
        that makes a weight's gradient infinite does the same to its bias, and training that diverges goes on diverging.
        """
        self.steps += 1
        if self.companion and parameter.numel() > SMALL and self.steps % HEALTH_STEPS:
            return
        if isinstance(self.health, Tensor):
            self.health = self.health.to(parameter.device)
        self.health = 0 * parameter.sum() + self.health

    def interval(self) -> tuple[Any, Any]:
        """Lower and upper end: two numbers before the first task has ended, then two cached tensors."""
        parameter = self.local
        if parameter.dtype not in (torch.float32, torch.float64):
            require_float([self.slot])
        if self.bits is None or self.centre is None:
            edge = self.bound * (1 - 2.0**-self.depth) if self.rules.open_range else self.bound
            return -edge, edge
        if self.bits.shape != parameter.shape:
            require_same_shape(self.slot, self.layout.wrapped(self.bits).shape)
        stale = self.ends is None or self.ends[0].device != parameter.device or self.ends[0].dtype != parameter.dtype
        if stale:
            self._follow(parameter.device)
            low, high = b.interval(
                self.centre, self.bits, self.depth, self.bound, parameter.dtype, open_range=self.rules.open_range
            )
            if (
                low.stride() != parameter.stride()
            ):  # a clamp is fast only where parameter and ends have the same strides
                low, high = torch.empty_like(parameter).copy_(low), torch.empty_like(parameter).copy_(high)
            self.ends = low.detach(), high.detach()
        assert self.ends is not None
        return self.ends

    def _follow(self, device: torch.device) -> None:
        """Move the state to the device of the parameter."""
        for name in TENSORS:
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, tensor.to(device))

    def theta(self) -> Tensor:
        """The parameter before rounding, which straight-through training keeps apart from the rounded value."""
        parameter, residual = self.local.detach(), self.current_residual()
        return parameter if residual is None else parameter + residual.to(parameter.device)

    def current_residual(self) -> Tensor | None:
        """The residual; None where there is none, or where the parameter was overwritten since."""
        return self.residual if self.local._version == self.rounded_version else None

    def take_sickness(self) -> bool:
        """Whether a step since the last call of this left entries that were not finite."""
        sick, self.health = float(self.health) != 0, 0.0
        return sick

    def outside(self) -> tuple[int, float]:
        """Number of entries outside their interval, and their largest distance from it."""
        low, high = self.interval()
        theta = self.theta()
        distance = torch.maximum(low - theta, theta - high)
        # with a bound that is no power of two, ends are rounded: a model that changed its precision may be off by that
        slack = 0.0 if self.rules.power_of_two else self.bound * 2.0**-23
        count = int((distance > slack).sum())
        return count, distance.max().item() if count else 0.0

    # the end of a task: freeze more

    @torch.no_grad()
    def after_task(self, new_fisher: Tensor, prior: float) -> "TensorState":
        """The state after a task with this Fisher. The old state stays as it is."""
        theta, rules, task = self.theta(), self.rules, self.tasks + 1
        self._follow(theta.device)
        bits = torch.zeros_like(theta, dtype=torch.uint8) if self.bits is None else self.bits
        centre = torch.zeros_like(theta, dtype=torch.int32) if self.centre is None else self.centre
        # a prior below the smallest float32 would be a division by 0
        smallest = torch.finfo(torch.float32).tiny
        first = torch.full((), max(prior * self.prior_scale, smallest), dtype=torch.float32, device=theta.device)
        old = first if self.fisher is None else self.fisher
        new_bits = rules.new_bits(new_fisher, old, first, bits, task, self.depth)
        centre = rules.centre_rule.place(CentreInputs(theta, centre, bits, new_bits, self.depth, self.bound))
        fisher = rules.accumulated(new_fisher, old, task)
        return replace(self, tasks=task, bits=new_bits, centre=centre, fisher=fisher, ends=None)

    def take_from_first_(self, ranks: Ranks) -> None:
        """Copy rank 0's state to all ranks, which could differ by rounding. A shard keeps that of its own rank."""
        if not self.layout.sharded:
            for tensor in (self.bits, self.centre, self.fisher):
                assert tensor is not None
                ranks.broadcast_(tensor)

    @torch.no_grad()
    def snap_(self) -> None:
        """Set the parameter to its centre Q(theta, S), within the open range: the released code's last step."""
        if self.rules.snap and self.centre is not None:
            parameter = self.local
            parameter.copy_(b.to_value(self.centre, self.depth, self.bound, parameter.dtype))
            self.after_step_()

    # accounting and saving

    def frozen_bits(self) -> Tensor:
        if self.bits is None:
            return torch.zeros_like(self.local, dtype=torch.uint8, requires_grad=False)
        return self.bits.clone()

    def nbytes(self, cache: bool) -> int:
        held = [self.bits, self.centre, self.fisher, self.residual, *((self.ends or ()) if cache else ())]
        return sum(t.nbytes for t in held if t is not None)

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        """State of the tensor: whole tensors, or ``sharded`` like the parameter."""
        laid_out = self.layout.wrapped if sharded else self.layout.full
        values = {name: getattr(self, name) for name in ("bound", "prior_scale", "tasks", *TENSORS)}
        values["residual"] = self.current_residual()
        return {
            name: laid_out(v.clone()) if isinstance(v, Tensor) else v for name, v in values.items() if v is not None
        }

    def loaded(self, saved: dict[str, Any]) -> "TensorState":
        """The state with saved values, copied to the device of the parameter."""
        local = self.local
        empty: dict[str, Any] = dict.fromkeys((*TENSORS, "ends"))
        values = {
            k: self._part(v).to(local.device, copy=True) if isinstance(v, Tensor) else v for k, v in saved.items()
        }
        return replace(self, **{**empty, **values}, rounded_version=local._version)

    def _part(self, saved: Tensor) -> Tensor:
        return layout_of(saved).local(saved) if is_sharded(saved) else self.layout.part(saved)


def find_companions(states: Collection[TensorState]) -> None:
    """Note which tensors have a small tensor of the same module under watch."""
    small = {id(m) for state in states if state.local.numel() <= SMALL for m, _ in state.slot.owners}
    for state in states:
        state.companion = any(id(module) in small for module, _ in state.slot.owners)
