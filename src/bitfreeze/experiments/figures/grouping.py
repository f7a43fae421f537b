"""Runs that differ only in their seed, together."""

from statistics import mean, stdev
from typing import Any

from ..stored import StoredRun

Matrix = list[list[float]]


def grouped(runs: list[StoredRun]) -> dict[str, list[StoredRun]]:
    """By method, variant and changes, in the order they come."""
    found: dict[str, list[StoredRun]] = {}
    for run in runs:
        found.setdefault(run.label, []).append(run)
    return found


def mean_matrix(runs: list[StoredRun]) -> Matrix:
    """The mean accuracy over seeds, for as many tasks as all of them have learned."""
    shown = min(len(run.matrix) for run in runs)
    return [[mean(run.matrix[t][u] for run in runs) for u in range(t + 1)] for t in range(shown)]


def require_accuracies(runs: list[StoredRun], what: str) -> None:
    if all(run.events and "score" in run.last_task for run in runs):
        raise ValueError(f"{what} shows accuracies, and these are runs of games: draw 'scores' or 'reward'")


def begun(runs: list[StoredRun], what: str) -> dict[str, list[StoredRun]]:
    """Groups of runs that have learned a task at least."""
    found = grouped([run for run in runs if run.matrix])
    if not found:
        require_accuracies(runs, what)
        raise ValueError(f"{what} needs runs that have learned a task: none of these has")
    return found


def results(runs: list[StoredRun], what: str) -> dict[str, list[dict[str, Any]]]:
    """The results of finished runs with accuracies, by group."""
    found = {
        label: [r.result for r in group if r.result and "acc" in r.result] for label, group in grouped(runs).items()
    }
    finished = {label: group for label, group in found.items() if group}
    if not finished:
        require_accuracies(runs, what)
        raise ValueError(f"{what} needs finished runs: none of these has ended")
    return finished


def spread(values: list[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else 0.0
