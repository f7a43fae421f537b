"""MNIST-5 with BLIP: the wall time of our protocol and of the public code's (released.py), part by part."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.streams import Stream, make_stream
from bitfreeze.lab.tasks import Split, Task, TaskData
from bitfreeze.lab.training import Settings, Training, accuracy
from loop import first_rows, new_network
from measure import seconds
from released import Released

FISHER_BATCH = 100  # the released one, and with it the factor between the two scales of the prior
PARTS = ("an epoch's steps", "an epoch's evaluation", "a task's end", "testing a task")
STEPS, EVALUATION, END, TEST = PARTS


@dataclass(frozen=True)
class Shares:
    """Seconds of each part, the best seen: of an epoch's steps and evaluation, of a task's end, of testing one task."""

    ours: dict[str, float]
    released: dict[str, float]

    def ratio(self, part: str) -> float:
        return self.released[part] / self.ours[part]

    def whole(self, epochs: int, tasks: int = 5) -> float:
        """The ratio of whole runs of so many epochs a task."""
        released, ours = (_whole(side, epochs, tasks) for side in (self.released, self.ours))
        return released / ours


def _whole(side: dict[str, float], epochs: int, tasks: int) -> float:
    every_epoch = side[STEPS] + side[EVALUATION]
    return tasks * (epochs * every_epoch + side[END]) + tasks * (tasks + 1) / 2 * side[TEST]


def measure_protocol(epochs: int = 3, tasks: int = 2, rows: int = 12_665, samples: int = 8000) -> Shares:
    """Both sides in turn, epoch by epoch. The last task counts: there bits are frozen on both sides. Tasks before it
    end with an eighth of the samples, which takes the public way long enough."""
    stream = make_stream("mnist5")
    settings = Settings(lr=0.01, batch=64, epochs=epochs)
    ours, released = Ours(stream, settings), Theirs(stream, settings)
    for task in stream.tasks[:tasks]:
        data = first_rows(stream.load(task), rows)
        for side in (ours, released):
            side.clock.clear()
            side.begin_task(task, data)
        for _ in range(epochs):
            ours.epoch()
            released.epoch()
        for side in (ours, released):
            side.end_task(samples if task is stream.tasks[tasks - 1] else samples // 8)
            side.test()
    return Shares(*({part: min(side.clock[part]) for part in PARTS} for side in (ours, released)))


class Clock(defaultdict[str, list[float]]):
    """Seconds that each part took, time after time."""

    def __init__(self) -> None:
        super().__init__(list)

    def timed(self, part: str, action: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            results: list[Any] = []
            self[part].append(seconds(lambda: results.append(action(*args))))
            return results[0]

        return run


class Ours:
    """The laboratory's loop and method, with the released rules: both sides compute the same."""

    def __init__(self, stream: Stream, settings: Settings) -> None:
        self.clock, self.settings = Clock(), settings
        self.net = new_network(stream)
        self.method = make_method("blip", {"rules": "released", "prior": 1e-15 * FISHER_BATCH**2})
        self.method.build(self.net, stream.tasks)
        self.method.validation_loss = self.clock.timed(EVALUATION, self.method.validation_loss)

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.task, self.data = task, data
        self.epochs = Training(self.method, self.net, task, data, self.settings, seed=task.index).epochs()

    def epoch(self) -> None:
        whole = seconds(lambda: next(self.epochs))
        self.clock[STEPS].append(whole - self.clock[EVALUATION][-1])

    def end_task(self, samples: int) -> None:
        next(self.epochs, None)  # restores the best weights
        self.method.samples = samples
        self.clock.timed(END, self.method.end_task)(self.task, self.data)

    def test(self) -> None:
        batch = self.settings.evaluation_batch
        self.clock.timed(TEST, accuracy)(self.method, self.net, self.task, self.data.test, batch)


class Theirs:
    """The public code's protocol on images made float32 once."""

    def __init__(self, stream: Stream, settings: Settings) -> None:
        self.clock, self.settings = Clock(), settings
        self.released = Released(new_network(stream), prior=1e-15, batch=settings.batch)

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.task, self.x, self.y = task.index, *_floats(data.train)
        self.held = _floats(data.test)
        self.optimizer = SGD(self.released.net.parameters(), lr=self.settings.lr)
        self.shuffling = torch.Generator().manual_seed(task.index)

    def epoch(self) -> None:
        order = torch.randperm(len(self.y), generator=self.shuffling)
        train = self.clock.timed(STEPS, self.released.train_epoch)
        train(self.x, self.y, self.task, self.optimizer, order)
        self.clock.timed(EVALUATION, self._evaluate_twice)()

    def _evaluate_twice(self) -> None:
        for _ in ("for the training loss", "for the validation loss"):
            self.released.evaluate(self.x, self.y, self.task)

    def end_task(self, samples: int) -> None:
        self.clock.timed(END, self.released.end_task)(self.x, self.task, samples, FISHER_BATCH)

    def test(self) -> None:
        self.clock.timed(TEST, self.released.evaluate)(*self.held, self.task)


def _floats(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    return split.take(slice(None))
