"""How a run goes, while it goes: a live display on a terminal, a line every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .config import Config
from .store import Event, RunFolder, runs_root
from .sweep import Outcome


class _Shown:
    """On display inside a ``with``. By default there is nothing to set up or to take down."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None


class _Bars(_Shown):
    """Bars that are redrawn in place."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[note]}", markup=False), console=console,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()


class Lines(_Shown):
    """A line every few seconds, and one for each task learned."""

    def __init__(self, every: float = 5.0) -> None:
        self.every, self.printed = every, time.monotonic()
        self.names: list[str] = []

    def __call__(self, event: Event) -> None:
        if event["event"] == "started":
            self.names = event["tasks"]
        elif event["event"] == "task":
            self._print(f"task {event['task'] + 1} ({self.names[event['task']]})  {_figures(event)}")
        elif event["event"] in _NOTES and time.monotonic() - self.printed > self.every:
            self._print(f"task {event['task'] + 1} ({self.names[event['task']]})  {_NOTES[event['event']](event)}")

    def _print(self, text: str) -> None:
        self.printed = time.monotonic()
        print(text, flush=True)


class Live(_Bars):
    """A bar for the tasks and one for the epochs or updates of the task at hand."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.names: list[str] = []

    def __call__(self, event: Event) -> None:
        if event["event"] == "started":
            self.names = event["tasks"]
            self.tasks = self.progress.add_task("tasks", total=len(self.names), completed=event["learned"], note="")
            cap = event.get("epochs_cap") or event["updates_cap"]
            self.within = self.progress.add_task("", total=cap, note="")
        elif event["event"] in _NOTES:
            name, kind = f"task {event['task'] + 1} ({self.names[event['task']]})", event["event"]
            self.progress.update(self.within, description=name, completed=event[kind], note=_NOTES[kind](event))
        elif event["event"] == "task":
            self.progress.update(self.tasks, completed=event["task"] + 1, note=_figures(event))
            self.progress.reset(self.within)


class SweepLines(_Shown):
    """A line for each run that ends, and what it warned of."""

    def look(self, config: Config) -> None:
        """Nothing is said of a run before it ends."""

    def done(self, outcome: Outcome) -> None:
        print(_ended(outcome), flush=True)


class SweepLive(_Bars):
    """A bar for all runs and one for each that is going on."""

    def __init__(self, console: Console, runs: int) -> None:
        super().__init__(console)
        self.all = self.progress.add_task("runs", total=runs, note="")
        self.bars: dict[str, TaskID] = {}

    def look(self, config: Config) -> None:
        folder = RunFolder(runs_root() / config.name)
        started, last = folder.last("started"), next(filter(None, map(folder.last, _NOTES)), None)
        if not started or not last:
            return
        if config.name not in self.bars:
            self.bars[config.name] = self.progress.add_task(config.title, total=len(started["tasks"]), note="")
        note = f"task {last['task'] + 1}  {_NOTES[last['event']](last)}"
        self.progress.update(self.bars[config.name], completed=last["task"], note=note)

    def done(self, outcome: Outcome) -> None:
        if outcome.config.name in self.bars:
            self.progress.remove_task(self.bars[outcome.config.name])
        self.progress.advance(self.all)
        self.progress.console.print(_ended(outcome), markup=False, highlight=False)


def show_progress() -> Lines | Live:
    """What suits where the output goes."""
    console = Console()
    return Live(console) if console.is_terminal else Lines()


def show_sweep(runs: int) -> SweepLines | SweepLive:
    console = Console()
    return SweepLive(console, runs) if console.is_terminal else SweepLines()


def _epoch(event: Event) -> str:
    return (
        f"epoch {event['epoch']}  loss {event['train_loss']:.4f}  validation {event['valid_loss']:.4f}  "
        f"lr {event['lr']:.2g}"
    )


def _update(event: Event) -> str:
    score = "" if event["score"] is None else f"  score {event['score']:.1f}"
    return f"{event['steps']:,} steps{score}  entropy {event['entropy']:.3f}  lr {event['lr']:.2g}"


_NOTES = {"epoch": _epoch, "update": _update}  # what is said within a task, by the kind of event


def _ended(outcome: Outcome) -> str:
    warnings = "".join(f"\n  {warning}" for warning in outcome.warnings)
    return f"{outcome.config.title}: {outcome.error or 'done'}{warnings}"


def _figures(event: Event) -> str:
    word = "accuracy" if "accuracy" in event else "score"
    return f"{word} " + " ".join(f"{value:.2f}" for value in event[word])
