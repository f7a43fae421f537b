"""One run, from its settings to its accuracy matrix; started again, it goes on where it was cut off."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..methods import Method, make_method
from ..nets import build_network
from ..streams import Stream, Task, make_stream
from ..training import Epoch, Training, accuracy
from . import metrics
from .checkpoint import load_checkpoint, random_states, save_checkpoint, set_random_states
from .config import Config
from .store import Event, Listener, RunFolder, runs_root


def run(
    config: Config,
    root: Path | None = None,
    listeners: Iterable[Listener] = (),
    checkpoint_seconds: float = 20.0,
    keep_bits: bool = True,
) -> Event:
    """Carry out a run, or the rest of it; returns its last event, which holds its result.

    ``listeners`` are told of each event. ``keep_bits``: write what the method shows of its state after each task. A run
    that is finished is not done again.
    """
    folder = RunFolder((runs_root() if root is None else root) / config.name, listeners)
    with folder.locked():
        finished = folder.result()
        folder.require_same_config(config, finished is not None)
        if finished is not None:
            return finished
        prepared = Run(config, folder, checkpoint_seconds, keep_bits)  # refuses what cannot be, before anything is kept
        folder.write_config(config)
        return prepared.finish()


class Run:
    """A run in progress."""

    def __init__(self, config: Config, folder: RunFolder, checkpoint_seconds: float, keep_bits: bool) -> None:
        self.config, self.folder = config, folder
        self.checkpoint_seconds, self.keep_bits = checkpoint_seconds, keep_bits
        torch.manual_seed(config.seed)
        self.stream: Stream = make_stream(config.stream, **config.stream_options)
        classes = [task.classes for task in self.stream.tasks]
        net = build_network(config.network, self.stream.shape, classes)
        self.plain_bytes = sum(p.numel() * p.element_size() for p in net.parameters())
        self.method: Method = make_method(config.method, config.method_options)
        self.net: nn.Module = self.method.build(net, self.stream.tasks)
        self.matrix: list[list[float]] = []
        self.seconds = 0.0
        self.number = 0  # of the next checkpoint
        self.saved_at = self.started_at = time.monotonic()

    def finish(self) -> Event:
        training = self._take_up()
        names = [task.name for task in self.stream.tasks]
        self.folder.event("started", tasks=names, learned=len(self.matrix), epochs_cap=self.config.settings.epochs)
        for task in self.stream.tasks[len(self.matrix) :]:
            data = self.stream.load(task)
            current = Training(self.method, self.net, task, data, self.config.settings, self._task_seed(task))
            if training is not None:
                current.load_state_dict(training)
                training = None
            for epoch in current.epochs():
                self._note(task, epoch)
                if time.monotonic() - self.saved_at >= self.checkpoint_seconds:
                    self._save(current.state_dict())
            self._save(current.state_dict())
            self.method.end_task(task, data)
            self._evaluate(task)
            self._save(None)
        return self._conclude()

    def _task_seed(self, task: Task) -> int:
        return 1000 * self.config.seed + task.index

    def _note(self, task: Task, epoch: Epoch) -> None:
        self.folder.event(
            "epoch", task=task.index, epoch=epoch.number, lr=epoch.lr, train_loss=epoch.train_loss,
            valid_loss=epoch.valid_loss, seconds=self._elapsed(),
        )  # fmt: skip

    def _evaluate(self, task: Task) -> None:
        batch = self.config.settings.evaluation_batch
        seen = self.stream.tasks[: task.index + 1]
        self.matrix.append([accuracy(self.method, self.net, u, self.stream.load(u).test, batch) for u in seen])
        self.folder.write_matrix(self.matrix)
        pictures = self.method.pictures() if self.keep_bits else {}
        if pictures:
            self.folder.write_pictures(task.index, pictures)
        self.folder.event(
            "task", task=task.index, accuracy=self.matrix[-1], extra_bytes=self.method.extra_bytes(),
            buffer_bytes=self.method.buffer_bytes(), **self.method.report(),
        )  # fmt: skip

    def _conclude(self) -> Event:
        result = {
            "acc": metrics.average_accuracy(self.matrix),
            "bwt": metrics.backward_transfer(self.matrix),
            "bwt_T": metrics.backward_transfer(self.matrix, "T"),
            "forgetting": metrics.forgetting(self.matrix),
            "learning_acc": metrics.learning_accuracy(self.matrix),
            "model_bytes": self.plain_bytes,
            "extra_bytes": self.method.extra_bytes(),
            "buffer_bytes": self.method.buffer_bytes(),
            "seconds": self._elapsed(),
        }
        return self.folder.event("finished", **result)

    # being cut off, and going on

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started_at

    def _save(self, training: dict[str, Any] | None) -> None:
        save_checkpoint(
            self.folder.checkpoints,
            self.number,
            {
                "net": self.net.state_dict(),
                "method": self.method.state_dict(),
                "training": training,
                "matrix": self.matrix,
                "seconds": self._elapsed(),
                "events": self.folder.events_written,
                "random": random_states(),
            },
        )
        self.number += 1
        self.saved_at = time.monotonic()

    def _take_up(self) -> dict[str, Any] | None:
        """Continue at the newest checkpoint; returns the state of a task's training, if it was in the middle of it."""
        found = load_checkpoint(self.folder.checkpoints)
        if found is None:
            return None
        number, state = found
        self.number = number + 1
        self.matrix, self.seconds = state["matrix"], state["seconds"]
        self.folder.events_written = state["events"]
        if self.method.record.rereads:
            for task in self.stream.tasks[: len(self.matrix)]:
                self.method.recall(task, self.stream.load(task))
        self.net.load_state_dict(state["net"])
        self.method.load_state_dict(state["method"])  # after the weights: straight-through state belongs to them
        set_random_states(state["random"])
        training: dict[str, Any] | None = state["training"]
        return training
