"""How a run goes, while it goes: a live display on a terminal, a line every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .store import Event


class Lines:
    """A line every few seconds, and one for each task learned."""

    def __init__(self, every: float = 5.0) -> None:
        self.every, self.printed = every, time.monotonic()
        self.names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def __call__(self, event: Event) -> None:
        if event["event"] == "started":
            self.names = event["tasks"]
        elif event["event"] == "task":
            self._print(f"task {event['task'] + 1} ({self.names[event['task']]})  {_accuracies(event)}")
        elif event["event"] == "epoch" and time.monotonic() - self.printed > self.every:
            self._print(f"task {event['task'] + 1} ({self.names[event['task']]})  {_epoch(event)}")

    def _print(self, text: str) -> None:
        self.printed = time.monotonic()
        print(text, flush=True)


class Live:
    """A bar for the tasks and one for the epochs of the task at hand, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"), console=console,
        )  # fmt: skip
        self.names: list[str] = []

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        if event["event"] == "started":
            self.names = event["tasks"]
            self.tasks = self.progress.add_task("tasks", total=len(self.names), completed=event["learned"], note="")
            self.epochs = self.progress.add_task("epochs", total=event["epochs_cap"], note="")
        elif event["event"] == "epoch":
            name = f"task {event['task'] + 1} ({self.names[event['task']]})"
            self.progress.update(self.epochs, description=name, completed=event["epoch"], note=_losses(event))
        elif event["event"] == "task":
            self.progress.update(self.tasks, completed=event["task"] + 1, note=_accuracies(event))
            self.progress.reset(self.epochs)


def show_progress() -> Lines | Live:
    """What suits where the output goes."""
    console = Console()
    return Live(console) if console.is_terminal else Lines()


def _epoch(event: Event) -> str:
    return f"epoch {event['epoch']}  {_losses(event)}"


def _losses(event: Event) -> str:
    return f"loss {event['train_loss']:.4f}  validation {event['valid_loss']:.4f}  lr {event['lr']:.2g}"


def _accuracies(event: Event) -> str:
    return "accuracy " + " ".join(f"{value:.2f}" for value in event["accuracy"])
