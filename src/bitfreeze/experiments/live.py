"""How far a run has come, from what it has written: for the page that is watched."""

import time
from statistics import mean
from typing import Any

from .store import Event
from .stored import StoredRun

ROUNDS = {"epoch": "train_loss", "update": "loss"}  # what training goes round in, and the loss that it notes
QUIET = 300.0  # seconds without an event after which a run is no longer said to go on, or ten of its epochs


def going_on(runs: list[StoredRun]) -> list[dict[str, Any]]:
    """Runs that are not finished, the most lively first."""
    unfinished = [run for run in runs if run.result is None and run.events]
    return [live(run) for run in sorted(unfinished, key=_silence)]


def live(run: StoredRun) -> dict[str, Any]:
    """State, progress from 0 to 1, time left in words, and the curves of the task at hand."""
    rounds = [event for event in run.events if event["event"] in ROUNDS]
    ended = [event for event in run.events if event["event"] == "task"]
    learned = task = run.learned
    here = [event for event in rounds if event["task"] == task]
    done = _number(here[-1]) if here else 0
    usual = _rounds_a_task(run, rounds, learned)
    remaining = (len(run.tasks) - learned) * usual - min(done, usual)
    silence = _silence(run)
    lively = silence < max(QUIET, 10 * _pace(rounds))
    name = f" ({run.tasks[task]})" if task < len(run.tasks) else ""
    kind = rounds[-1]["event"] if rounds else "epoch"
    return {
        "title": run.title,
        "state": "going on" if lively else f"nothing new for {_words(silence)}",
        "at": f"task {min(task + 1, len(run.tasks))} of {len(run.tasks)}{name}, {kind} {done}",
        "left": f"about {_words(remaining * _pace(rounds))} left" if lively and _pace(rounds) else "",
        "progress": (learned + min(1.0, done / usual)) / max(1, len(run.tasks)) if learned < len(run.tasks) else 1.0,
        "train_loss": [event[ROUNDS[event["event"]]] for event in here],
        "valid_loss": [event["valid_loss"] for event in here if "valid_loss" in event],
        "accuracy": ended[-1].get("accuracy", ended[-1].get("score", [])) if ended else [],
    }


def _rounds_a_task(run: StoredRun, rounds: list[Event], learned: int) -> float:
    """The mean of the tasks that are learned; before the first is, the most that there can be."""
    last = {event["task"]: _number(event) for event in rounds if event["task"] < learned}
    started: Event = next((event for event in run.events if event["event"] == "started"), {})
    return mean(last.values()) if last else float(started.get("epochs_cap") or started.get("updates_cap") or 1)


def _number(event: Event) -> int:
    return int(event[event["event"]])


def _pace(rounds: list[Event]) -> float:
    """Seconds an epoch or update, over the last twenty; 0 where that is not known."""
    timed = [event["seconds"] for event in rounds[-20:] if "seconds" in event]
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
