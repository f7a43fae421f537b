"""Runs with accuracies, in groups that differ only in their seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from ...metrics import spread
from ...runs.events import AccuracyResult, TaskPlayed, TaskRead, TaskTested
from ..grouping import grouped
from ..stored import StoredRun

Matrix = list[list[float]]


@dataclass(frozen=True)
class Ended:
    """A finished run with its result."""

    run: StoredRun
    result: AccuracyResult


def mean_matrix(runs: list[StoredRun]) -> Matrix:
    """The mean accuracy over seeds, for as many tasks as all runs have learned."""
    shown = min(len(run.matrix) for run in runs)
    return [[mean(run.matrix[t][u] for run in runs) for u in range(t + 1)] for t in range(shown)]


def deviations(runs: list[StoredRun]) -> Matrix:
    """The standard deviation over seeds of each entry of ``mean_matrix``; 0 for one run."""
    shown = min(len(run.matrix) for run in runs)
    return [[spread([run.matrix[t][u] for run in runs])[1] for u in range(t + 1)] for t in range(shown)]


def seeds_in_words(groups: Iterable[Sequence[object]], form: str) -> str:
    """How many seeds there are, and the form in which the figure shows their spread; one seed has none."""
    counts = sorted({len(group) for group in groups})
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return "one seed" if counts[-1] == 1 else f"{number} seeds, {form}: standard deviation"


def require_accuracies(runs: list[StoredRun], what: str) -> None:
    if all(isinstance(run.last_task, TaskPlayed) for run in runs):
        raise ValueError(f"{what} shows accuracies, and these are runs of games: draw 'scores' or 'reward'")
    if all(isinstance(run.last_task, TaskRead) for run in runs):
        raise ValueError(f"{what} shows accuracies, and these are runs of texts: draw 'skills'")


def begun(runs: list[StoredRun], what: str) -> dict[str, list[StoredRun]]:
    """The runs of each label that have learned a task at least."""
    found = [run for run in runs if isinstance(run.last_task, TaskTested)]
    if not found:
        require_accuracies(runs, what)
        raise ValueError(f"{what} needs runs that have learned a task: none of these has")
    return grouped(found, lambda run: run.label)


def ended(runs: list[StoredRun], what: str) -> dict[str, list[Ended]]:
    """The finished runs of each label."""
    found = [Ended(run, run.result) for run in runs if isinstance(run.result, AccuracyResult)]
    if not found:
        require_accuracies(runs, what)
        raise ValueError(f"{what} needs finished runs: none of these has ended")
    return grouped(found, lambda each: each.run.label)
