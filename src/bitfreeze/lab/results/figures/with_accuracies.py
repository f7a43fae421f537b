"""Runs with accuracies, in groups that differ only in their seed."""

from dataclasses import dataclass
from statistics import mean

from ...runs.events import AccuracyResult, TaskPlayed, TaskTested
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


def require_accuracies(runs: list[StoredRun], what: str) -> None:
    if all(isinstance(run.last_task, TaskPlayed) for run in runs):
        raise ValueError(f"{what} shows accuracies, and these are runs of games: draw 'scores' or 'reward'")


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
