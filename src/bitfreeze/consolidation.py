"""What the end of a task did: which bits were frozen where, what is left, and how the Fisher was found."""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from .rules import Rules
from .tensor_state import TensorState


@dataclass(frozen=True)
class TensorReport:
    """One parameter tensor after a task. Counts are of bits unless they say entries."""

    name: str
    entries: int
    depth: int
    frozen: int  # in all
    frozen_now: int  # by this task
    touched_entries: int  # with a Fisher above 0 in this task
    touched_free: int  # bits still free in those
    full_depth_entries: int  # with no free bit left
    fisher_rule: str

    @property
    def used(self) -> float:
        """Share of the tensor's bits that are frozen."""
        return self.frozen / max(1, self.entries * self.depth)

    @property
    def left(self) -> float:
        return 1 - self.used


@dataclass(frozen=True)
class Consolidation:
    """The report of :meth:`BLIP.consolidate`."""

    task: int
    tensors: dict[str, TensorReport]
    histogram: list[int]  # histogram[k]: entries in which this task froze k more bits
    prior: float
    share: float  # of the bits of parameters with non-zero Fisher, what this task froze
    rules: Rules
    samples: int
    fisher_seconds: float
    seconds: float

    @property
    def frozen_now(self) -> int:
        return sum(report.frozen_now for report in self.tensors.values())

    @property
    def full_depth_entries(self) -> int:
        return sum(report.full_depth_entries for report in self.tensors.values())

    @property
    def used(self) -> float:
        """Share of all watched bits that are frozen."""
        total = sum(report.entries * report.depth for report in self.tensors.values())
        return sum(report.frozen for report in self.tensors.values()) / max(1, total)

    @property
    def left(self) -> float:
        return 1 - self.used

    @property
    def layers(self) -> dict[str, float]:
        """Share of bits used, layer by layer (the tensors of a module together)."""
        names = {report.name.rpartition(".")[0] for report in self.tensors.values()}
        groups = {layer: [r for r in self.tensors.values() if r.name.rpartition(".")[0] == layer] for layer in names}
        return {
            layer: sum(r.frozen for r in group) / max(1, sum(r.entries * r.depth for r in group))
            for layer, group in sorted(groups.items())
        }

    @property
    def forecast(self) -> float:
        """How many more tasks like this one fit: bits still free in the parameters that it used, by what it froze.

        A straight line: later tasks usually gain less than the first, so it is a cautious figure.
        """
        free = sum(report.touched_free for report in self.tensors.values())
        return free / self.frozen_now if self.frozen_now else inf

    def __str__(self) -> str:
        width = max(len(name) for name in self.tensors)
        lines = [
            f"task {self.task}: {self.share:.1%} of the bits in use frozen, {self.used:.1%} of all; room for about "
            f"{self.forecast:.1f} more like it (prior {self.prior:.3g}, {self.samples} samples, {self.seconds:.2f} s)",
            f"  {'tensor':{width}}  {'entries':>10}  {'bits/entry':>10}  {'new':>6}  {'left':>6}  {'full':>8}  Fisher",
        ]
        for r in self.tensors.values():
            mean, new = r.frozen / max(1, r.entries), r.frozen_now / max(1, r.entries)
            lines.append(
                f"  {r.name:{width}}  {r.entries:>10,}  {mean:>10.2f}  {new:>6.2f}  {r.left:>6.1%}  "
                f"{r.full_depth_entries:>8,}  {r.fisher_rule}"
            )
        return "\n".join(lines)


def report_tensor(before: TensorState, after: TensorState, fisher: Tensor, rule: str) -> tuple[TensorReport, Tensor]:
    """What happened to one tensor, and the histogram of its extra bits."""
    assert after.bits is not None
    extra = after.bits if before.bits is None else after.bits - before.bits
    histogram = torch.bincount(extra.flatten(), minlength=after.depth + 1).cpu()
    counts = torch.bincount(after.bits.flatten(), minlength=after.depth + 1).cpu()
    touched = torch.bincount(after.bits[fisher > 0], minlength=after.depth + 1).cpu()
    numbers = torch.arange(after.depth + 1)
    report = TensorReport(
        name=after.slot.name,
        entries=after.bits.numel(),
        depth=after.depth,
        frozen=int((numbers * counts).sum()),
        frozen_now=int((numbers * histogram).sum()),
        touched_entries=int(touched.sum()),
        touched_free=int(((after.depth - numbers) * touched).sum()),
        full_depth_entries=int(counts[after.depth]),
        fisher_rule=rule,
    )
    return report, histogram
