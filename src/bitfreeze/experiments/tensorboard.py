"""TensorBoard as a further place for a run's events."""

from pathlib import Path

from ..missing import install
from .store import Event

# which lists have a figure for each task, by the kind of event: others, such as single games, are not drawn
FIGURES = {"task": ("accuracy", "score"), "evaluation": ("scores",)}


class TensorBoard:
    """Writes the scalars of each event, and figures by task, below ``folder``; the event's number is the step."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise ValueError(f"TensorBoard is not installed: {install('lab')}") from None
        self.folder, self.make_writer = folder, SummaryWriter
        self.writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        step = event["n"]
        if self.writer is None:
            # a run that continues writes some numbers again: what was there of them is taken back
            self.writer = self.make_writer(str(self.folder), purge_step=step)
        for name, value in event.items():
            if isinstance(value, float):
                self.writer.add_scalar(f"{event['event']}/{name}", value, step)
        for word in FIGURES.get(event["event"], ()):
            for index, value in enumerate(event.get(word, ())):
                self.writer.add_scalar(f"{word}/task {index + 1}", value, step)
        self.writer.flush()
        if event["event"] == "finished":
            self.writer.close()
