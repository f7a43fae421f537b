"""The report of a task's end: bits frozen in each tensor, room left, and how the Fisher was found."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .._messages import warn_caller
from ..fisher import FisherEstimate
from ..model.ranks import Ranks
from .rules import Rules
from .tensor_state import TensorState

MANY = 200  # samples from which on a share of right predictions tells a wrong head from a hard task
HELD_BACK = 0.5  # share of coordinates at the edge, above which tasks were seen to learn little
DRIFT_SPREAD = 2.0  # the true cost lies within this factor of the estimate on hard tasks (results/drift.md)


@dataclass(frozen=True)
class TensorReport:
    """One parameter tensor after a task. Numbers count bits unless their name says entries."""

    name: str
    entries: int
    depth: int
    frozen: int  # by all tasks
    frozen_now: int  # by this task
    touched_entries: int  # entries with a Fisher above 0 in this task
    touched_free: int  # bits still free in touched entries
    full_depth_entries: int  # entries without a free bit
    fisher_way: str
    at_edge: int | None = None  # entries at the edge of their interval when the task ended; None in the first task

    @property
    def used(self) -> float:
        """Share of the tensor's bits that are frozen."""
        return self.frozen / max(1, self.entries * self.depth)

    @property
    def left(self) -> float:
        return 1 - self.used


@dataclass(frozen=True)
class Consolidation:
    """The report of ``BLIP.consolidate``. Print it for a table of all tensors.

    Attributes:
        task: number of the task, 1 for the first.
        tensors: a report of each parameter tensor, by name.
        histogram: ``histogram[k]`` entries got k more frozen bits from this task.
        prior: F_0 in force.
        share: frozen by this task, of the bits of parameters with non-zero Fisher.
        rules: how bits and intervals followed from the Fisher.
        samples: number of samples that were measured.
        fisher_seconds: time of the measurement.
        seconds: time of the whole call.
        drift: estimated nats a sample (a predicted token, for sequences) that this task has cost the earlier ones,
            known to within a factor of two; None under rules by weight.
        accuracy: share of the predictions on this data that agree with its labels, None without labels.
        is_a_guess: whether that share is about that of a guess among the classes, as with a head of another task.
    """

    task: int
    tensors: dict[str, TensorReport]
    histogram: list[int]
    prior: float
    share: float
    rules: Rules
    samples: int
    fisher_seconds: float
    seconds: float
    drift: float | None = None
    accuracy: float | None = None
    is_a_guess: bool = False

    @property
    def at_edge(self) -> float | None:
        """Share of the coordinates that ended the task at the edge of their interval, None in the first task."""
        held = [report for report in self.tensors.values() if report.at_edge is not None]
        if not held:
            return None
        return sum(report.at_edge or 0 for report in held) / max(1, sum(report.entries for report in held))

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
        """Share of frozen bits of each layer: all tensors of a module together."""
        names = {report.name.rpartition(".")[0] for report in self.tensors.values()}
        groups = {layer: [r for r in self.tensors.values() if r.name.rpartition(".")[0] == layer] for layer in names}
        return {
            layer: sum(r.frozen for r in group) / max(1, sum(r.entries * r.depth for r in group))
            for layer, group in sorted(groups.items())
        }

    def __str__(self) -> str:
        width = max(len(name) for name in self.tensors)
        lines = [
            f"task {self.task}: froze {self.share:.1%} of the bits in use, {self.used:.1%} of all are frozen now "
            f"({self.samples} samples, {self.seconds:.2f} s)",
            *(f"  {sentence}" for sentence in self._sentences()),
            f"  {'tensor':{width}}  {'entries':>10}  {'bits/entry':>10}  {'new':>6}  {'left':>6}  {'at edge':>7}  "
            "Fisher",
        ]
        for r in self.tensors.values():
            mean, new = r.frozen / max(1, r.entries), r.frozen_now / max(1, r.entries)
            edge = "" if r.at_edge is None else f"{r.at_edge / max(1, r.entries):.2%}"
            lines.append(
                f"  {r.name:{width}}  {r.entries:>10,}  {mean:>10.2f}  {new:>6.2f}  {r.left:>6.1%}  {edge:>7}  "
                f"{r.fisher_way}"
            )
        return "\n".join(lines)

    def _sentences(self) -> list[str]:
        found = []
        if self.accuracy is not None:
            doubt = ", hardly more than a guess does: is it the head of this task?" if self.is_a_guess else ""
            found.append(f"forward predicts {self.accuracy:.1%} of this data's labels{doubt}")
        if self.at_edge is not None:
            held_back = ", so it was held back: has it learned enough?" if self.at_edge > HELD_BACK else ""
            found.append(
                f"{self.at_edge:.2%} of the coordinates ended the task at the edge of their interval{held_back}"
            )
        if self.drift is not None and self.task > 1:
            low, high = self.drift / DRIFT_SPREAD, self.drift * DRIFT_SPREAD
            found.append(
                f"the task has cost the earlier ones about {self.drift:.2g} nats a sample ({low:.2g} to {high:.2g})"
            )
        return found


def report_tensors(
    before: Mapping[str, TensorState],
    after: Mapping[str, TensorState],
    fisher: Mapping[str, Tensor],
    ways: Mapping[str, str],
    ranks: Ranks,
) -> tuple[dict[str, TensorReport], list[int]]:
    """The report of each tensor, and the histogram of extra bits over all tensors."""
    counts = torch.stack([_count(before[name], state, fisher[name], ranks) for name, state in after.items()])
    ranks.sum_(counts)
    edges = _edges(before, ranks)
    reports = {
        name: tensor_report(name, state.depth, ways[name], counts[k], edges[k])
        for k, (name, state) in enumerate(after.items())
    }
    return reports, counts[:, 0].sum(0).tolist()


def _edges(before: Mapping[str, TensorState], ranks: Ranks) -> list[int | None]:
    """Entries at the edge of their interval, None for tensors that have not ended a task before."""
    here = [s.at_edge() if s.bits is not None and s.layout.counts_here(ranks) else 0 for s in before.values()]
    counted = ranks.sum_(torch.tensor(here, device="cpu")).tolist()
    return [None if s.bits is None else count for s, count in zip(before.values(), counted, strict=True)]


def _count(before: TensorState, after: TensorState, fisher: Tensor, ranks: Ranks) -> Tensor:
    assert after.bits is not None
    if not after.layout.counts_here(ranks):
        return torch.zeros(3, after.depth + 1, dtype=torch.int64, device="cpu")
    bits_before = torch.zeros_like(after.bits) if before.bits is None else before.bits
    return bit_counts(bits_before, after.bits, fisher > 0, after.depth)


def bit_counts(before: Tensor, after: Tensor, in_use: Tensor, depth: int) -> Tensor:
    """Histograms of bits: gained by each entry, frozen in each entry, frozen in each entry in use."""
    counted = ((after - before.minimum(after)).flatten(), after.flatten(), after[in_use])
    return torch.stack([torch.bincount(values, minlength=depth + 1) for values in counted]).cpu()


def shared(counts: Tensor, share: float) -> Tensor:
    """A share of the entries of each histogram, in whole numbers whose sum is right."""
    upto = (counts.cumsum(1).double() * share).round().long()
    return upto.diff(dim=1, prepend=torch.zeros_like(upto[:, :1]))


def tensor_report(name: str, depth: int, way: str, counts: Tensor, at_edge: int | None = None) -> TensorReport:
    """The report of a tensor or layer from its histograms of bits."""
    gained, frozen, in_use = counts
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
        fisher_way=way,
        at_edge=at_edge,
    )


def warn_of_no_edge(result: Consolidation, trained: bool) -> None:
    """Warn that a task had no effect: its weights did not change, or none of them was held back."""
    if result.task > 1 and not trained:
        warn_caller(
            f"no watched weight has changed between the ends of tasks {result.task - 1} and {result.task}; train "
            "before you consolidate, and once a task",
        )
    elif result.at_edge == 0 and result.drift is None:
        warn_caller(
            f"no weight reached the edge of its interval in task {result.task}, so nothing was held back; use "
            "Rules.directions(), or a larger budget",
        )


def warn_of_a_guess(found: FisherEstimate) -> None:
    """Warn of a ``forward`` whose classes are hardly better than a guess, before what was measured is taken up."""
    if found.is_a_guess and found.positions == 1 and found.samples >= MANY:
        warn_caller(
            f"forward predicts {found.accuracy:.1%} of this data's labels, hardly more than a guess; use the head of "
            "this task, or train it first, and begin anew with another BLIP"
        )


def warn_of_exhaustion(result: Consolidation) -> None:
    exhausted = [name for name, report in result.tensors.items() if report.entries and report.left < 0.01]
    if exhausted:
        warn_caller(
            f"'{exhausted[0]}'{f' and {len(exhausted) - 1} more' if len(exhausted) > 1 else ''} has run out of free "
            "bits and can learn no more; use a smaller budget or a larger prior from the start",
        )
