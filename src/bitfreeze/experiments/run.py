"""A run in progress: task after task, saved between and within them, whatever it is that trains."""

import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from ..distributed import world
from ..methods import Method, make_method, methods
from ..nets import build_network
from ..rl import Games
from ..streams import Stream, Task, TaskData
from ..training import share_random_state
from .checkpoint import load_checkpoint, next_number, random_states, save_checkpoint, set_random_states, share_state
from .config import Config
from .store import Event, RunFolder, RunRefused


class Run(ABC):
    """What a kind of training adds is how a task is trained and tested, and what is said of it in the end."""

    figures: ClassVar[str]  # what the matrix holds, and the name of its file
    data_parallel: ClassVar[bool] = False  # whether several ranks can share it

    def __init__(self, config: Config, folder: RunFolder, checkpoint_seconds: float, keep_bits: bool) -> None:
        self.config, self.folder = config, folder
        self.checkpoint_seconds, self.keep_bits = checkpoint_seconds, keep_bits
        self.ranks = world()
        torch.manual_seed(config.seed)
        opened = self._open()
        self.tasks = opened.tasks
        net = build_network(config.network, opened.shape, [task.classes for task in self.tasks])
        self.plain_bytes = sum(p.nbytes for p in net.parameters())
        self.method: Method = make_method(config.method, config.method_options)
        if self.ranks.count > 1:
            self._require_data_parallel()
        self.net: nn.Module = self.method.build(net, self.tasks)
        self.matrix: list[list[float]] = []
        self.seconds = 0.0
        self.number = 0  # of the next checkpoint
        self.saved_at = self.started_at = time.monotonic()

    def _require_data_parallel(self) -> None:
        if not self.data_parallel:
            raise RunRefused(f"{self.config.stream} cannot be shared between ranks: start it without torchrun")
        if not self.method.record.data_parallel:
            known = ", ".join(name for name, method in methods.items() if method.record.data_parallel)
            raise RunRefused(
                f"{self.config.method} cannot share a run between ranks: start it without torchrun (those that can: "
                f"{known})"
            )

    @abstractmethod
    def _open(self) -> Stream | Games:
        """The tasks."""

    @abstractmethod
    def _cap(self) -> dict[str, int]:
        """How long a task may take, for those who watch."""

    @abstractmethod
    def _train(self, task: Task, state: dict[str, Any] | None) -> TaskData:
        """Train a task, from its beginning or from a state; returns what the method sees at the task's end."""

    @abstractmethod
    def _test(self, task: Task) -> tuple[list[float], dict[str, Any]]:
        """A figure for each task so far, the next row of the matrix, and what else to note."""

    @abstractmethod
    def _result(self) -> dict[str, Any]:
        """What is said of the run in the end."""

    def _recall(self) -> None:  # noqa: B027 - most runs need nothing
        """Where a run continues after some tasks: what the method wants to see of them again."""

    def _own_state(self) -> dict[str, Any]:
        """What a kind of training keeps besides; attributes by name."""
        return {}

    def finish(self) -> Event:
        training = self._take_up()
        names = [task.name for task in self.tasks]
        self.folder.event("started", tasks=names, learned=len(self.matrix), **self._cap())
        for task in self.tasks[len(self.matrix) :]:
            data = self._train(task, training)
            training = None
            share_random_state(self.ranks)
            self.method.end_task(task, data)
            self._note_task(task)
            self._save(None)
        sizes = {"extra_bytes": self.method.extra_bytes(), "buffer_bytes": self.method.buffer_bytes()}
        result = {**self._result(), "model_bytes": self.plain_bytes, **sizes, "seconds": self._elapsed()}
        return self.folder.event("finished", **result)

    def _task_seed(self, task: Task) -> int:
        return 1000 * self.config.seed + task.index

    def _note_task(self, task: Task) -> None:
        row, more = self._test(task)
        self.matrix.append(row)
        self.folder.write_matrix(self.matrix, self.figures)
        pictures = self.method.pictures() if self.keep_bits else {}
        if pictures:
            self.folder.write_tensors("bits", task.index, pictures)
        self.folder.event(
            "task", task=task.index, **{self.figures: row}, **more, extra_bytes=self.method.extra_bytes(),
            buffer_bytes=self.method.buffer_bytes(), **self.method.report(),
        )  # fmt: skip

    # being cut off, and going on

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started_at

    def _save_now_and_then(self, training: dict[str, Any]) -> None:
        if time.monotonic() - self.saved_at >= self.checkpoint_seconds:
            self._save(training)

    def _save(self, training: dict[str, Any] | None) -> None:
        if not self.ranks.leads:
            return
        save_checkpoint(
            self.folder.checkpoints,
            self.number,
            {
                "net": self.net.state_dict(),
                "method": self.method.state_dict(),
                "training": training,
                "matrix": self.matrix,
                "own": self._own_state(),
                "seconds": self._elapsed(),
                "events": self.folder.events_written,
                "random": random_states(),
            },
        )
        self.number += 1
        self.saved_at = time.monotonic()

    def _take_up(self) -> dict[str, Any] | None:
        """Continue at the newest checkpoint; returns the state of a task's training, if it was in the middle of it."""
        found = load_checkpoint(self.folder.checkpoints) if self.ranks.leads else None
        state = share_state(None if found is None else found[1], self.ranks)
        self.number = next_number(self.folder.checkpoints) if found is None else found[0] + 1
        if state is None:
            return None
        self.matrix, self.seconds = state["matrix"], state["seconds"]
        for name, value in state.get("own", {}).items():
            setattr(self, name, value)
        self.folder.events_written = state["events"]
        self._recall()
        self.net.load_state_dict(state["net"])
        self.method.load_state_dict(state["method"])  # after the weights: straight-through state belongs to them
        set_random_states(state["random"])
        training: dict[str, Any] | None = state["training"]
        return training
