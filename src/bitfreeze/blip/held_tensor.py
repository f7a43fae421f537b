"""State of one parameter tensor that is held entry by entry, with radius sqrt(F_0 / F): 8 bytes an entry."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..model.parameters import Slot
from .growth import refuse_other_shape, with_rows
from .watched import WatchedTensor

AT_EDGE = 0.95  # share of the radius that counts as the edge: intervals widen a little between two clamps


@dataclass
class HeldTensor(WatchedTensor):
    """Centre of each entry's interval and its accumulated Fisher. Before its first task ends, there are no tensors.

    In a layer that is held along directions, the Fisher is that of what the input directions leave out.
    """

    depth: int
    bound: float  # what a radius is compared with when bits are counted: nothing is clipped to it
    prior: float | None = None  # F_0 in force
    centre: Tensor | None = None
    fisher: Tensor | None = None
    radius: Tensor | None = None  # cache, for a width of 1
    width: float = 1.0  # by which intervals are wider (widening.py)
    seen: tuple[int, int] | None = None  # the parameter and its version at its last step, or when the last task ended

    SAVED: ClassVar[tuple[str, ...]] = ("bound",)
    TENSORS: ClassVar[tuple[str, ...]] = ("centre", "fisher")
    CACHES: ClassVar[tuple[str, ...]] = ("radius",)

    @torch.no_grad()
    def hold_(self) -> None:
        if self.fisher is not None:
            self.note_health(self.local)
            self.local.clamp_(*self.interval())

    def require_shape(self) -> None:
        if self.centre is not None and self.centre.shape != self.local.shape:
            refuse_other_shape(self.slot, self.layout.wrapped(self.centre).shape, sharded=self.layout.sharded)

    def current_radius(self) -> Tensor:
        """Radius of each entry's interval; infinite where the Fisher is 0."""
        assert self.prior is not None
        assert self.fisher is not None
        assert self.centre is not None
        local = self.local
        if self.centre.device != local.device or self.centre.dtype != local.dtype:
            self.follow(local.device)
            self.centre, self.radius = self.centre.to(local.dtype), None
        if self.radius is None:
            self.radius = radius_of(self.fisher.to(local.dtype), self.prior)
        return self.radius if self.width == 1 else self.radius * self.width

    def interval(self) -> tuple[Any, Any]:
        if self.centre is None or self.fisher is None:
            return -inf, inf
        radius = self.current_radius()
        return self.centre - radius, self.centre + radius

    def change(self) -> Tensor:
        """How far the entries are from their centres."""
        assert self.centre is not None
        local = self.local.detach()
        return local - self.centre.to(local)

    def outside(self) -> tuple[int, float]:
        if self.centre is None or self.fisher is None:
            return 0, 0.0
        distance = self.change().abs() - self.current_radius()
        count = int((distance > slack_of(self.centre)).sum())
        return count, distance.max().item() if count else 0.0

    def note_seen(self) -> None:
        """Note that the parameter is as a step and the clamp after it, or the end of a task, have left it."""
        self.seen = None if self.layout.sharded else (id(self.slot.parameter), self.local._version)

    def is_untouched(self) -> bool:
        return self.seen is not None and not self.was_edited

    def note_untouched(self) -> None:
        self.note_seen()

    @property
    def was_edited(self) -> bool:
        """Whether the parameter was changed since its last step: restored, averaged or replaced."""
        return self.seen is not None and self.seen != (id(self.slot.parameter), self.local._version)

    def at_edge(self) -> int:
        """Number of entries at the edge of their interval."""
        return int((self.change().abs() >= AT_EDGE * self.current_radius()).sum())

    def cost(self) -> Tensor:
        """Nats a sample that earlier tasks have lost by the change of these entries."""
        if self.centre is None or self.fisher is None:
            return torch.zeros((), dtype=torch.float64, device="cpu")
        return 0.5 * (self.fisher.to(self.local) * self.change().square()).sum(dtype=torch.float64)

    @torch.no_grad()
    def after_task(self, fisher: Tensor | None, prior: float) -> Self:
        """The state after a task, with the Fisher of all tasks. The old state stays as it is."""
        centre = self.local.detach().clone(memory_format=torch.contiguous_format)
        return replace(
            self,
            tasks=self.tasks + 1,
            prior=prior,
            centre=centre,
            fisher=None if fisher is None else fisher.contiguous(),
            radius=None,
            width=1.0,
            seen=None,
        )

    def grown(self, slot: Slot) -> Self:
        """The state with more rows, which have no Fisher and so are free. The old state stays as it is."""
        assert self.centre is not None
        new = slot.local.detach()[len(self.centre) :]
        centre = with_rows(self.centre, new, len(new))
        fisher = None if self.fisher is None else with_rows(self.fisher, 0, len(new))
        return replace(self, slot=slot, centre=centre, fisher=fisher, radius=None, seen=None)

    def frozen_bits(self) -> Tensor:
        if self.fisher is None or self.prior is None:
            return torch.zeros_like(self.local, dtype=torch.uint8, requires_grad=False)
        return bits_of(self.fisher.float(), self.prior, self.bound, self.depth)


def radius_of(fisher: Tensor, prior: float) -> Tensor:
    """At the edge of its interval a coordinate costs earlier tasks F r^2 / 2 = F_0 / 2 nats a sample."""
    return (prior / fisher).sqrt_()


def bits_of(fisher: Tensor, prior: float, bound: float, depth: int) -> Tensor:
    """Whole bits that an interval of this radius leaves frozen, out of ``depth`` for [-bound, bound]."""
    bits = 0.5 * torch.log2(fisher * (bound**2 / prior))
    return bits.floor_().clamp_(0, depth).to(torch.uint8)


def slack_of(values: Tensor) -> float:
    """Rounding that a weight may be off by after it was moved to the edge of its interval."""
    eps = torch.finfo(values.dtype).eps
    return 8 * eps * max(1.0, values.abs().max().item()) if values.numel() else 0.0
