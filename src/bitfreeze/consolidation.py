"""What the end of a task did: which bits were frozen where, what is left, and how the Fisher was found."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from .distributed import Ranks
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
            f"task {self.task}: froze {self.share:.1%} of the bits in use; {self.used:.1%} of all are frozen now, "
            f"room for about {self.forecast:.1f} more like it "
            f"(prior {self.prior:.3g}, {self.samples} samples, {self.seconds:.2f} s)",
            f"  {'tensor':{width}}  {'entries':>10}  {'bits/entry':>10}  {'new':>6}  {'left':>6}  {'full':>8}  Fisher",
        ]
        for r in self.tensors.values():
            mean, new = r.frozen / max(1, r.entries), r.frozen_now / max(1, r.entries)
            lines.append(
                f"  {r.name:{width}}  {r.entries:>10,}  {mean:>10.2f}  {new:>6.2f}  {r.left:>6.1%}  "
                f"{r.full_depth_entries:>8,}  {r.fisher_rule}"
            )
        return "\n".join(lines)


def report_tensors(
    before: Mapping[str, TensorState],
    after: Mapping[str, TensorState],
    fisher: Mapping[str, Tensor],
    rules: Mapping[str, str],
    ranks: Ranks,
) -> tuple[dict[str, TensorReport], list[int]]:
    """What happened to each tensor, and the histogram of the extra bits of all."""
    counts = torch.stack([_count(before[name], state, fisher[name], ranks) for name, state in after.items()])
    ranks.sum_(counts)
    reports = {
        name: _report(name, state.depth, rules[name], *counts[k]) for k, (name, state) in enumerate(after.items())
    }
    return reports, counts[:, 0].sum(0).tolist()


def _count(before: TensorState, after: TensorState, fisher: Tensor, ranks: Ranks) -> Tensor:
    """How many entries have gained 0, 1, 2 ... bits, how many have that many now, and how many of those in use."""
    length = after.depth + 1
    assert after.bits is not None
    if not after.layout.counts_here(ranks):
        return torch.zeros(3, length, dtype=torch.int64, device="cpu")
    extra = after.bits if before.bits is None else after.bits - before.bits
    counted = (extra.flatten(), after.bits.flatten(), after.bits[fisher > 0])
    return torch.stack([torch.bincount(values, minlength=length) for values in counted]).cpu()


def _report(name: str, depth: int, rule: str, gained: Tensor, frozen: Tensor, in_use: Tensor) -> TensorReport:
    numbers = torch.arange(depth + 1, device=frozen.device)
    return TensorReport(
        name=name,
        entries=int(frozen.sum()),
        depth=depth,
        frozen=int((numbers * frozen).sum()),
        frozen_now=int((numbers * gained).sum()),
        touched_entries=int(in_use.sum()),
        touched_free=int(((depth - numbers) * in_use).sum()),
        full_depth_entries=int(frozen[depth]),
        fisher_rule=rule,
    )


def warn_of_exhaustion(result: Consolidation) -> None:
    exhausted = [name for name, report in result.tensors.items() if report.entries and report.left < 0.01]
    if exhausted:
        warnings.warn(
            f"'{exhausted[0]}'{f' and {len(exhausted) - 1} more' if len(exhausted) > 1 else ''} has run out of free "
            "bits and can learn no more: a smaller budget or a larger prior leaves more",
            stacklevel=4,  # where consolidate is called: torch.inference_mode puts a frame of its own between
        )
