"""How far a run has come, from what it has written: for the page that is watched."""

import time
from statistics import mean
from typing import Any

from .store import Event
from .stored import StoredRun

QUIET = 300.0  # seconds without an event after which a run is no longer said to go on, or ten of its epochs


def going_on(runs: list[StoredRun]) -> list[dict[str, Any]]:
    """Runs that are not finished, the most lively first."""
    unfinished = [run for run in runs if run.result is None and run.events]
    return [live(run) for run in sorted(unfinished, key=_silence)]


def live(run: StoredRun) -> dict[str, Any]:
    """State, progress from 0 to 1, time left in words, and the curves of the task at hand."""
    epochs = [event for event in run.events if event["event"] == "epoch"]
    learned, task = len(run.matrix), len(run.matrix)
    here = [event for event in epochs if event["task"] == task]
    done = here[-1]["epoch"] if here else 0
    usual = _epochs_a_task(run, epochs, learned)
    remaining = (len(run.tasks) - learned) * usual - min(done, usual)
    silence = _silence(run)
    lively = silence < max(QUIET, 10 * _pace(epochs))
    name = f" ({run.tasks[task]})" if task < len(run.tasks) else ""
    return {
        "title": run.title,
        "state": "going on" if lively else f"nothing new for {_words(silence)}",
        "at": f"task {min(task + 1, len(run.tasks))} of {len(run.tasks)}{name}, epoch {done}",
        "left": f"about {_words(remaining * _pace(epochs))} left" if lively and _pace(epochs) else "",
        "progress": (learned + min(1.0, done / usual)) / max(1, len(run.tasks)) if learned < len(run.tasks) else 1.0,
        "train_loss": [event["train_loss"] for event in here],
        "valid_loss": [event["valid_loss"] for event in here],
        "accuracy": run.matrix[-1] if run.matrix else [],
    }


def _epochs_a_task(run: StoredRun, epochs: list[Event], learned: int) -> float:
    """The mean of the tasks that are learned; before the first is, the most that there can be."""
    last = {event["task"]: event["epoch"] for event in epochs if event["task"] < learned}
    return mean(last.values()) if last else float(run.config["training"].get("epochs", 1))


def _pace(epochs: list[Event]) -> float:
    """Seconds an epoch, over the last twenty; 0 where that is not known."""
    timed = [event["seconds"] for event in epochs[-20:] if "seconds" in event]
    if len(timed) > 1 and timed[-1] > timed[0]:
        return float(timed[-1] - timed[0]) / (len(timed) - 1)
    return float(timed[0]) if timed else 0.0


def _silence(run: StoredRun) -> float:
    """Seconds since it wrote something."""
    return max(0.0, time.time() - (run.folder.path / "events.jsonl").stat().st_mtime)


def _words(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
