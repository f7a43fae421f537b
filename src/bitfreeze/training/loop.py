"""Supervised training of one task."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..distributed import world
from ..methods import Batch, Method
from ..streams import Split, Task, TaskData
from .parallel import share_buffers, share_of, share_random_state, shared_objective
from .schedule import Plateau, Settings


class TrainingDiverged(RuntimeError):
    """The loss is no longer a number."""


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch."""

    number: int
    train_loss: float
    valid_loss: float
    lr: float


class Training:
    """One task's training, epoch by epoch; its state between two epochs can be saved and taken up again."""

    def __init__(
        self, method: Method, net: nn.Module, task: Task, data: TaskData, settings: Settings, seed: int
    ) -> None:
        self.method, self.net, self.task, self.data, self.settings = method, net, task, data, settings
        self.plateau = Plateau(settings.lr, settings.patience)
        self.shuffling = torch.Generator().manual_seed(seed)
        self.optimizers: list[Optimizer] = []
        self.ranks = world()
        method.begin_task(task, data)
        method.compute = shared_objective(method, net, self.ranks)
        self._new_optimizers()

    def epochs(self) -> Iterator[Epoch]:
        """Train until the schedule ends; then the weights are the best that validation saw."""
        while not self.plateau.done:
            lr = self.plateau.lr
            train_loss = self._train_epoch()
            valid_loss = self._validate()
            if not isfinite(valid_loss):
                raise TrainingDiverged(
                    f"the validation loss is {valid_loss} after task {self.task.index + 1}, epoch "
                    f"{self.plateau.epoch + 1}: lower the learning rate ({self.plateau.lr:g}), or look for bad inputs"
                )
            if self.plateau.update(valid_loss, self.net.state_dict(), self.settings):
                self._new_optimizers()
            yield Epoch(self.plateau.epoch, train_loss, valid_loss, lr)
        self.net.load_state_dict(self.plateau.best)

    def _new_optimizers(self) -> None:
        self.optimizers = self.method.optimizers(self.task, self.plateau.lr)

    def _train_epoch(self) -> float:
        self.net.train()
        share_random_state(self.ranks)
        split, size = self.data.train, self.settings.batch
        total = 0.0
        for step, rows in enumerate(_shuffled(split, size, self.shuffling)):
            mine, weight = share_of(rows, self.ranks)
            batch = Batch(*split.take(mine), self.task, weight)
            loss = self.method.train_batch(batch, step * size / len(split), self.optimizers).item()
            if not isfinite(loss):
                raise TrainingDiverged(
                    f"the loss is {loss} at task {self.task.index + 1}, epoch {self.plateau.epoch + 1}, step "
                    f"{step + 1}: lower the learning rate ({self.plateau.lr:g}), or look for bad inputs"
                )
            total += loss * len(rows)
        share_buffers(self.net, self.ranks)
        return sum(self.ranks.gather(total)) / (self.ranks.count * len(split))

    def _validate(self) -> float:
        self.net.eval()
        splits = self.method.validation_splits(self.task, self.data)
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


def _shuffled(split: Split, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return torch.split(torch.randperm(len(split), generator=generator), size)
