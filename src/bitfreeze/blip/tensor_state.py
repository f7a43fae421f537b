"""State of one parameter tensor by weight: 9 bytes an entry, and 8 more while training for the interval's ends."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .. import bits as b
from ..model.parameters import Slot, require_float
from .growth import refuse_other_shape, with_rows
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
    began: Tensor | None = None  # int16, once the tensor has grown: tasks that ended before there was this entry
    residual: Tensor | None = None  # straight-through only: parameter minus its rounded value
    rounded_version: int = -1  # version of the parameter that the residual belongs to
    ends: tuple[Tensor, Tensor] | None = None  # cache of the interval

    SAVED: ClassVar[tuple[str, ...]] = ("bound", "prior_scale")
    TENSORS: ClassVar[tuple[str, ...]] = ("bits", "centre", "fisher", "began", "residual")
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
        self.note_health(parameter)
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
            refuse_other_shape(self.slot, self.layout.wrapped(self.bits).shape, sharded=self.layout.sharded)
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
        distance = self.distance()
        count = int((distance > self.slack).sum())
        return count, distance.max().item() if count else 0.0

    def distance(self) -> Tensor:
        """How far each entry lies outside its interval; below 0 inside."""
        low, high = self.interval()
        theta = self.theta()
        return torch.maximum(low - theta, theta - high)

    @property
    def slack(self) -> float:
        """Distance that still counts as inside."""
        # with a bound that is no power of two, ends are rounded: a model that changed its precision may be off by that
        return 0.0 if self.rules.power_of_two else self.bound * 2.0**-23

    def at_edge(self) -> int:
        """Number of entries at an end of their interval."""
        low, high = self.interval()
        theta = self.theta()
        return int(((theta <= low) | (theta >= high)).sum())

    # the end of a task: freeze more

    @torch.no_grad()
    def after_task(self, new_fisher: Tensor, prior: float) -> Self:
        """The state after a task with this Fisher. The old state stays as it is."""
        theta, task = self.theta(), self.tasks + 1
        self.follow(theta.device)
        bits = torch.zeros_like(theta, dtype=torch.uint8) if self.bits is None else self.bits
        centre = torch.zeros_like(theta, dtype=torch.int32) if self.centre is None else self.centre
        first = torch.full((), self.first_fisher(prior), dtype=torch.float32, device=theta.device)
        old = first if self.fisher is None else self.fisher
        if self.began is None:
            bits, centre, fisher = self._frozen(theta, new_fisher, first, old, bits, centre, task)
            return replace(self, tasks=task, bits=bits, centre=centre, fisher=fisher, ends=None)
        bits, centre, fisher = bits.clone(), centre.clone(), old.clone()
        for began in torch.unique(self.began).tolist():  # rows that were added together count their tasks together
            rows = self.began == began
            bits[rows], centre[rows], fisher[rows] = self._frozen(
                theta[rows], new_fisher[rows], first, old[rows], bits[rows], centre[rows], task - began
            )
        return replace(self, tasks=task, bits=bits, centre=centre, fisher=fisher, ends=None)

    def _frozen(
        self, theta: Tensor, new_fisher: Tensor, first: Tensor, old: Tensor, bits: Tensor, centre: Tensor, task: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Bits, centres and Fisher after a task, from those before it."""
        rules = self.rules
        new_bits = rules.new_bits(new_fisher, old, first, bits, task, self.depth)
        place = CentreInputs(theta, centre, bits, new_bits, self.depth, self.bound)
        return new_bits, rules.centre_rule.place(place), rules.accumulated(new_fisher, old, task)

    def first_fisher(self, prior: float) -> float:
        """F_0 of an entry that has ended no task. Below the smallest float32 it would be a division by 0."""
        return max(prior * self.prior_scale, torch.finfo(torch.float32).tiny)

    def grown(self, slot: Slot, prior: float) -> Self:
        """The state with more rows, which begin at their own task 1. The old state stays as it is."""
        assert self.bits is not None
        assert self.centre is not None
        assert self.fisher is not None
        count = len(slot.local) - len(self.bits)
        began = torch.zeros_like(self.bits, dtype=torch.int16) if self.began is None else self.began
        return replace(
            self,
            slot=slot,
            bits=with_rows(self.bits, 0, count),
            centre=with_rows(self.centre, 0, count),
            fisher=with_rows(self.fisher, self.first_fisher(prior), count),
            began=with_rows(began, self.tasks, count),
            residual=None,
            ends=None,
        )

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
