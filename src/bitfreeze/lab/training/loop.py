"""Supervised training of one task."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...model.ranks import current_ranks
from ..methods import Method
from ..nets.batch_statistics import norms_by_batch
from ..precision import passes_in
from ..tasks import Batch, Task, TaskData, require_finite
from .parallel import share_buffers, share_of, share_random_state, shared_objective
from .schedule import Plateau, Settings

READ_EVERY = 32  # steps between two looks at the losses on a device other than the CPU


@dataclass(frozen=True)
class Epoch:
    """The figures of an epoch."""

    number: int
    train_loss: float
    valid_loss: float
    lr: float


class Losses:
    """The losses of the steps of an epoch. The host waits for a device when it reads them, so it reads many at once."""

    def __init__(self) -> None:
        self.known: list[float] = []
        self.unread: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        self.unread.append(loss)

    @property
    def are_due(self) -> bool:
        """Whether it is time to read the losses: after each step on a CPU, else after some."""
        return self.unread[-1].is_cpu or len(self.unread) >= READ_EVERY

    def read(self) -> list[tuple[int, float]]:
        """The losses that were not read yet, each with the number of its step, from 1."""
        new: list[float] = torch.stack(self.unread).tolist()
        first = len(self.known) + 1
        self.known += new
        self.unread.clear()
        return list(enumerate(new, first))


class Training:
    """One task's training, epoch by epoch. Its state between two epochs can be saved and restored."""

    def __init__(
        self, method: Method, net: nn.Module, task: Task, data: TaskData, settings: Settings, seed: int
    ) -> None:
        self.method, self.net, self.task, self.data, self.settings = method, net, task, data, settings
        self.plateau = Plateau(settings.lr, settings.patience)
        self.shuffling = torch.Generator().manual_seed(seed)
        self.optimizers: list[Optimizer] = []
        self.ranks = current_ranks()
        method.passes = passes_in(settings.precision, next(net.parameters()).device)
        method.net.seen = task.index + 1
        method.adamw = settings.optimizer == "adamw"
        method.begin_task(task, data)
        method.compute = shared_objective(method, net, self.ranks)
        self._new_optimizers()

    def epochs(self) -> Iterator[Epoch]:
        """Train until the schedule ends, then restore the weights with the lowest validation loss."""
        while not self.plateau.done:
            lr = self.plateau.lr
            train_loss = self._train_epoch()
            valid_loss = self._validate()
            require_finite("the validation loss", valid_loss, self._place(), lr)
            if self.plateau.update(valid_loss, self.net.state_dict(), self.settings):
                self._new_optimizers()
            yield Epoch(self.plateau.epoch, train_loss, valid_loss, lr)
        self.net.load_state_dict(self.plateau.best)

    def _place(self) -> str:
        return f"task {self.task.index + 1}, epoch {self.plateau.epoch + 1}"

    def _new_optimizers(self) -> None:
        self.optimizers = self.method.optimizers(self.task, self.plateau.lr)

    def _train_epoch(self) -> float:
        self.net.train()
        share_random_state(self.ranks)
        split, size = self.data.train, self.settings.batch
        parts = torch.split(torch.randperm(len(split), generator=self.shuffling), size)
        losses = Losses()
        for step, rows in enumerate(parts):
            mine, weight = share_of(rows, self.ranks)
            batch = Batch(*split.take(mine), self.task, weight)
            losses.add(self.method.train_batch(batch, step * size / len(split), self.optimizers))
            if losses.are_due or step + 1 == len(parts):
                for number, loss in losses.read():
                    require_finite("the loss", loss, f"{self._place()}, step {number}", self.plateau.lr)
        total = sum(loss * len(rows) for loss, rows in zip(losses.known, parts, strict=True))
        share_buffers(self.net, self.ranks)
        return sum(self.ranks.gather(total)) / (self.ranks.count * len(split))

    def _validate(self) -> float:
        self.net.eval()
        splits = self.method.validation_splits(self.task, self.data)
        if norms_by_batch(self.net):  # samples of a batch change each other's loss: in a fixed order one epoch is lucky
            splits = [
                (task, split.subset(torch.randperm(len(split), generator=self.shuffling))) for task, split in splits
            ]
        return self.method.validation_loss(splits, self.task, self.settings.evaluation_batch)

    def state_dict(self) -> dict[str, Any]:
        return {
            "plateau": self.plateau.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "shuffling": self.shuffling.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.plateau = Plateau(**state["plateau"])
        self._new_optimizers()
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.shuffling.set_state(state["shuffling"])
