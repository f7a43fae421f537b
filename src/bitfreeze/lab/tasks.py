"""Tasks and their samples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..likelihoods import Categorical, Likelihood
from ..model.ranks import Ranks
from .devices import sent


@dataclass(frozen=True)
class Task:
    """A task as a method sees it.

    Attributes:
        index: the task's place in the stream, from 0.
        name: the name that tables and curves show.
        classes: number of the task's own classes.
        likelihood: maps the scores of the network for this task to the distribution of the labels.
        first_label: the lowest label. It is 0, or the number of classes of all earlier tasks where one head grows.
        known: a pretrained network knows the task already: it is not trained, but measured and tested as the others.
    """

    index: int
    name: str
    classes: int
    likelihood: Callable[[Tensor], Likelihood] = Categorical
    first_label: int = 0
    known: bool = False


@dataclass(frozen=True)
class Split:
    """Images and their labels. ``take`` and ``batches`` return pixels as (x / 255 - mean) / std.

    Tokens of texts are kept likewise, and returned as they are.

    Attributes:
        x: images [n, channels, height, width], uint8; or tokens [n, positions].
        y: labels [n], or [n, positions].
        mean: a number for each channel, or one for all; empty for tokens.
        std: likewise.
        device: device of the batches. None for that of the images.
    """

    x: Tensor
    y: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: torch.device | None = None

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        place = self.device or self.x.device
        mean, std = torch.tensor(self.mean, device=place), torch.tensor(self.std, device=place)
        per_channel = (-1, *(1,) * (self.x.ndim - 2)) if len(self.mean) > 1 else (1,) * (self.x.ndim - 1)
        return (1 / (255 * std)).reshape(per_channel), (-mean / std).reshape(per_channel)

    def take(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Normalised images and labels of these rows."""
        x, y = self.rows(self.x, rows), self.rows(self.y, rows)
        if not self.mean:
            return x, y
        scale, shift = self._scale_and_shift
        pixels = x.to(torch.float32, copy=True)
        return torch.addcmul(shift, pixels, scale, out=pixels), y  # in place, because large batches are bound by memory

    def rows(self, values: Tensor, rows: Tensor | slice) -> Tensor:
        """These rows of the images or labels, as they are stored, on the device of the batches."""
        if isinstance(rows, slice):
            chosen = values[rows]
        else:  # index_select, because x[rows] of bytes takes many times as long
            chosen = values.index_select(0, rows.to(values.device, non_blocking=True))
        if self.device is None or self.device == values.device:
            return chosen
        return sent(chosen, self.device)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and labels of all samples, ``size`` at a time, in the order in which they are stored."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def share(self, ranks: Ranks) -> "Split":
        """This rank's samples, when all are dealt to the ranks in turn."""
        mine = slice(ranks.index, None, ranks.count)
        return self if ranks.count == 1 else replace(self, x=self.x[mine], y=self.y[mine])

    def subset(self, rows: Tensor) -> "Split":
        """The split of these rows."""
        rows = rows.to(self.x.device)
        return replace(self, x=self.x[rows], y=self.y[rows])

    @property
    def nbytes(self) -> int:
        """Memory of images and labels, in bytes."""
        return self.x.nbytes + self.y.nbytes

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, for the state of a method that keeps samples."""
        return {"x": self.x, "y": self.y, "mean": self.mean, "std": self.std}

    @classmethod
    def loaded(cls, state: dict[str, Any]) -> "Split":
        """The split that ``state_dict`` saved."""
        return cls(state["x"], state["y"], tuple(state["mean"]), tuple(state["std"]))


@dataclass(frozen=True)
class TaskData:
    """The samples of a task.

    Attributes:
        train: samples to train on.
        valid: samples for the learning-rate schedule. They may be those of ``train``.
        test: samples for the accuracy.
    """

    train: Split
    valid: Split
    test: Split


@dataclass(frozen=True)
class Batch:
    """Samples of one task.

    Attributes:
        x: normalised images [n, ...], or tokens.
        y: labels [n], or [n, positions].
        task: the task that they belong to.
        weight: weight of this rank's part of the batch in the mean over ranks.
    """

    x: Tensor
    y: Tensor
    task: Task
    weight: float = 1.0


class TrainingDiverged(RuntimeError):
    """The loss of a task is no longer a finite number."""


def require_finite(what: str, value: float, where: str, lr: float) -> None:
    """Raise TrainingDiverged where ``value`` is infinite or nan."""
    if not isfinite(value):
        raise TrainingDiverged(
            f"{what} must be finite, got {value} at {where}; lower the learning rate ({lr:g}), or look for bad inputs"
        )
