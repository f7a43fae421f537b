"""Progress of runs: a live display on a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..runs.config import Config
from ..runs.errors import RunDamaged
from ..runs.events import Event, Round, Started, TaskDone
from ..runs.folder import RunFolder, runs_root
from ..sweeps.sweep import Display, Outcome


class _Shown:
    """A display inside a ``with``. By default nothing is taken down."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None


class _Bars(_Shown):
    """Bars that are redrawn in place. They start with the first bar: until then data are got, which has other bars."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[note]}", markup=False), console=console,
        )  # fmt: skip

    def add(self, name: str, total: int, completed: int = 0) -> TaskID:
        self.progress.start()
        return self.progress.add_task(name, total=total, completed=completed, note="")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()


class Lines(_Shown):
    """A line every few seconds, and one for each task learned."""

    def __init__(self, every: float = 5.0) -> None:
        self.every, self.printed = every, time.monotonic()
        self.names: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.names = event.tasks
        elif isinstance(event, TaskDone):
            self._print(event.task, _row(event))
        elif isinstance(event, Round) and time.monotonic() - self.printed > self.every:
            self._print(event.task, event.words)

    def _print(self, task: int, text: str) -> None:
        self.printed = time.monotonic()
        print(f"task {task + 1} ({self.names[task]})  {text}", flush=True)


class Live(_Bars):
    """A bar for the tasks, and one for the epochs or updates of the task that is trained."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.names: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.names = event.tasks
            self.tasks = self.add("tasks", len(self.names), event.learned)
            self.within = self.add("", event.rounds_cap)
        elif isinstance(event, Round):
            name = f"task {event.task + 1} ({self.names[event.task]})"
            self.progress.update(self.within, description=name, completed=event.number, note=event.words)
        elif isinstance(event, TaskDone):
            self.progress.update(self.tasks, completed=event.task + 1, note=_row(event))
            self.progress.reset(self.within)


class SweepLines(_Shown, Display):
    """A line for each run that ends, and its warnings."""

    def done(self, outcome: Outcome) -> None:
        print(_ended(outcome), flush=True)


class SweepLive(_Bars, Display):
    """A bar for all runs, and one for each run that is going on."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bars: dict[str, TaskID] = {}

    def begin(self, configs: Sequence[Config]) -> None:
        self.all = self.add("runs", len(configs))

    def look(self, config: Config) -> None:
        try:
            events = RunFolder(runs_root() / config.name).events()
        except RunDamaged:  # the run itself says so and mends it
            return
        started = next((event for event in reversed(events) if isinstance(event, Started)), None)
        last = next((event for event in reversed(events) if isinstance(event, Round)), None)
        if started is None or last is None:
            return
        if config.name not in self.bars:
            self.bars[config.name] = self.add(config.title, len(started.tasks))
        note = f"task {last.task + 1}  {last.words}"
        self.progress.update(self.bars[config.name], completed=last.task, note=note)

    def done(self, outcome: Outcome) -> None:
        if outcome.config.name in self.bars:
            self.progress.remove_task(self.bars[outcome.config.name])
        self.progress.advance(self.all)
        self.progress.console.print(_ended(outcome), markup=False, highlight=False)


def show_run() -> Lines | Live:
    """The display of a run that suits stdout."""
    console = Console()
    return Live(console) if console.is_terminal else Lines()


def show_sweep() -> SweepLines | SweepLive:
    """The display of a sweep that suits stdout."""
    console = Console()
    return SweepLive(console) if console.is_terminal else SweepLines()


def _ended(outcome: Outcome) -> str:
    warnings = "".join(f"\n  {warning}" for warning in outcome.warnings)
    return f"{outcome.config.title}: {outcome.error or 'done'}{warnings}"


def _row(event: TaskDone) -> str:
    return f"{event.matrix} " + " ".join(f"{value:.2f}" for value in event.row)
