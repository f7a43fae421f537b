"""TensorBoard as a further place for a run's events."""

from pathlib import Path

from ..._messages import install
from .events import Evaluation, Event, Finished, TaskDone


class TensorBoard:
    """Writes the scalars of each event, and a figure of each task, below ``folder``; the event's number is the step."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise ValueError(f"TensorBoard is not installed: {install('lab')}") from None
        self.folder, self.make_writer = folder, SummaryWriter
        self.writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        if self.writer is None:
            # a run that continues writes some numbers again: the scalars from the first of them on are taken back
            self.writer = self.make_writer(str(self.folder), purge_step=event.n)
        for name, value in event.to_json().items():
            if isinstance(value, float):
                self.writer.add_scalar(f"{event.name}/{name}", value, event.n)
        word, row = _by_task(event)
        for index, value in enumerate(row):
            self.writer.add_scalar(f"{word}/task {index + 1}", value, event.n)
        self.writer.flush()
        if isinstance(event, Finished):
            self.writer.close()


def _by_task(event: Event) -> tuple[str, list[float]]:
    """The list of an event that has one figure for each task, with its name; other lists are not drawn."""
    if isinstance(event, TaskDone):
        return event.matrix, event.row
    return ("scores", event.scores) if isinstance(event, Evaluation) else ("", [])
