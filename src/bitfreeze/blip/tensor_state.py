"""State of one parameter tensor by weight: 9 bytes an entry, and 8 more while training for the interval's ends."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .. import bits as b
from ..model.parameters import require_float, require_same_shape
from .rules import CentreInputs, WeightRules
from .watched import WatchedTensor


@dataclass
class TensorState(WatchedTensor):
    """Frozen bits, centres and accumulated Fisher of a tensor. There are none before its first task ends."""

    depth: int
    rules: WeightRules
    bound: float
    prior_scale: float
    bits: Tensor | None = None  # uint8: how many leading bits are frozen
    centre: Tensor | None = None  # int32, in units of bound * 2^-depth
    fisher: Tensor | None = None  # float32: F_{0:t}
    residual: Tensor | None = None  # straight-through only: parameter minus its rounded value
    rounded_version: int = -1  # version of the parameter that the residual belongs to
    ends: tuple[Tensor, Tensor] | None = None  # cache of the interval

    SAVED: ClassVar[tuple[str, ...]] = ("bound", "prior_scale")
    TENSORS: ClassVar[tuple[str, ...]] = ("bits", "centre", "fisher", "residual")
    CACHES: ClassVar[tuple[str, ...]] = ("ends",)

    # training: stay inside the interval

    @torch.no_grad()
    def before_step_(self) -> None:
        """Straight-through: put theta back for the step, where the parameter held Q(theta, N) for the passes."""
        if self.residual is not None:
            self.local.copy_(self.theta())
            self.residual = None

    @torch.no_grad()
    def hold_(self) -> None:
        """Clamp the parameter into its interval (Eq. 4). A second call changes nothing."""
        self.before_step_()
        parameter = self.local
        self.check_health(parameter)
        low, high = self.interval()
        parameter.clamp_(low, high)
        if self.rules.straight_through:
            rounded = b.quantize(parameter, self.depth, self.bound)
            self.residual = parameter - rounded
            parameter.copy_(rounded)
            self.rounded_version = parameter._version

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
            self.follow(parameter.device)
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

    def theta(self) -> Tensor:
        """The parameter before rounding, which straight-through training keeps apart from the rounded value."""
        parameter, residual = self.local.detach(), self.current_residual()
        return parameter if residual is None else parameter + residual.to(parameter.device)

    def current_residual(self) -> Tensor | None:
        """The residual; None where there is none, or where the parameter was overwritten since."""
        return self.residual if self.local._version == self.rounded_version else None

    def is_untouched(self) -> bool:
        return self.current_residual() is not None

    def note_untouched(self) -> None:
        self.rounded_version = self.local._version

    def outside(self) -> tuple[int, float]:
        """Number of entries outside their interval, and their largest distance from it."""
        low, high = self.interval()
        theta = self.theta()
        distance = torch.maximum(low - theta, theta - high)
        # with a bound that is no power of two, ends are rounded: a model that changed its precision may be off by that
        slack = 0.0 if self.rules.power_of_two else self.bound * 2.0**-23
        count = int((distance > slack).sum())
        return count, distance.max().item() if count else 0.0

    def at_edge(self) -> int:
        """Number of entries at an end of their interval."""
        low, high = self.interval()
        theta = self.theta()
        return int(((theta <= low) | (theta >= high)).sum())

    # the end of a task: freeze more

    @torch.no_grad()
    def after_task(self, new_fisher: Tensor, prior: float) -> Self:
        """The state after a task with this Fisher. The old state stays as it is."""
        theta, rules, task = self.theta(), self.rules, self.tasks + 1
        self.follow(theta.device)
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

    @torch.no_grad()
    def snap_(self) -> None:
        """Set the parameter to its centre Q(theta, S), within the open range: the released code's last step."""
        if self.rules.snap and self.centre is not None:
            parameter = self.local
            parameter.copy_(b.to_value(self.centre, self.depth, self.bound, parameter.dtype))
            self.hold_()

    # accounting and saving

    def frozen_bits(self) -> Tensor:
        if self.bits is None:
            return torch.zeros_like(self.local, dtype=torch.uint8, requires_grad=False)
        return self.bits.clone()

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        self.residual = self.current_residual()
        return super().state_dict(sharded)

    def loaded(self, saved: Any) -> Self:
        return replace(super().loaded(saved), rounded_version=self.local._version)
