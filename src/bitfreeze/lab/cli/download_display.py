"""Progress of getting data, on stderr: a bar for each file on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from .. import data


class DownloadLines:
    """A line when a file begins, one every few seconds, and one when it is there."""

    def __init__(self, every: float = 10.0) -> None:
        self.every, self.printed = every, 0.0
        self.last = data.Step("")

    def __call__(self, step: data.Step) -> None:
        begins, whole = step.text != self.last.text, step.done is not None and step.done == step.total
        due = begins or whole or time.monotonic() - self.printed > self.every
        if due and step != self.last:
            self.last, self.printed = step, time.monotonic()
            print(step.text + _amount(step), file=sys.stderr, flush=True)


class DownloadBars:
    """A bar for each file, by the text of its steps; a line for a step that does not count bytes."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.bars: dict[str, TaskID] = {}

    def __call__(self, step: data.Step) -> None:
        if step.done is None:
            self.progress.console.print(step.text, markup=False, highlight=False)
            return
        if step.text not in self.bars:
            self.bars[step.text] = self.progress.add_task(step.text, total=step.total)
        self.progress.update(self.bars[step.text], completed=step.done, total=step.total)


@contextmanager
def show_download(console: Console | None = None) -> Iterator[data.Progress]:
    """The display that suits stderr."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield DownloadLines()
        return
    name = TextColumn("{task.description}", markup=False)
    with Progress(name, BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn(), console=console) as progress:
        yield DownloadBars(progress)


def _amount(step: data.Step) -> str:
    if step.done is None:
        return ""
    of = "" if step.total is None else f" of {step.total / 1e6:.1f}"
    return f": {step.done / 1e6:.1f}{of} MB"
