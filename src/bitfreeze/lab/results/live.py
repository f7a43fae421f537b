"""How far a run has come, read from its events: for the page that server.py serves."""

import time
from math import isfinite
from statistics import mean
from typing import Any

from ..runs.events import Round, Started
from .stored import StoredRun

QUIET = 300.0  # seconds without an event after which a run is no longer said to go on, or ten of its rounds


def going_on(runs: list[StoredRun]) -> list[dict[str, Any]]:
    """Runs that are not finished, the most lively first."""
    unfinished = [run for run in runs if run.result is None and run.events]
    return [live(run) for run in sorted(unfinished, key=_silence)]


def live(run: StoredRun) -> dict[str, Any]:
    """State, progress from 0 to 1, time left in words, and the curves of the task at hand."""
    rounds = [event for event in run.events if isinstance(event, Round)]
    task = len(run.learned)
    here = [event for event in rounds if event.task == task]
    done = here[-1].number if here else 0
    usual = _rounds_a_task(run, rounds)
    remaining = (len(run.tasks) - task) * usual - min(done, usual)
    silence = _silence(run)
    pace = _pace(rounds)
    lively = silence < max(QUIET, 10 * pace)
    name = f" ({run.tasks[task]})" if task < len(run.tasks) else ""
    word = rounds[-1].name if rounds else "epoch"
    return {
        "title": run.title,
        "state": "going on" if lively else f"nothing new for {_words(silence)}",
        "at": f"task {min(task + 1, len(run.tasks))} of {len(run.tasks)}{name}, {word} {done}",
        "left": f"about {_words(remaining * pace)} left" if lively and pace else "",
        "progress": (task + min(1.0, done / usual)) / max(1, len(run.tasks)) if task < len(run.tasks) else 1.0,
        "train_loss": [event.loss for event in here if isfinite(event.loss)],
        "valid_loss": [e.valid_loss for e in here if e.valid_loss is not None and isfinite(e.valid_loss)],
        "accuracy": run.last_task.row if run.last_task else [],
    }


def _rounds_a_task(run: StoredRun, rounds: list[Round]) -> float:
    """The mean over learned tasks; before a task is learned, the largest number of rounds that a task may take."""
    last = {event.task: event.number for event in rounds if event.task < len(run.learned)}
    caps = (event.rounds_cap for event in run.events if isinstance(event, Started))
    return mean(last.values()) if last else float(next(caps, 1))


def _pace(rounds: list[Round]) -> float:
    """Seconds a round, over the last twenty; 0 where the rounds do not tell."""
    timed = [event.seconds for event in rounds[-20:] if event.seconds is not None]
    if len(timed) > 1 and timed[-1] > timed[0]:
        return (timed[-1] - timed[0]) / (len(timed) - 1)
    return timed[0] if timed else 0.0


def _silence(run: StoredRun) -> float:
    """Seconds since the run wrote an event; 0 for one whose folder has just been deleted, or is of the future."""
    try:
        return max(0.0, time.time() - (run.folder.path / "events.jsonl").stat().st_mtime)
    except OSError:
        return 0.0


def _words(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
