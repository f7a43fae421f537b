"""A stream: tasks that come one after another, each with its own images and classes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..distributed import Ranks
from ..likelihoods import Categorical, Likelihood


@dataclass(frozen=True)
class Task:
    """What a method is told of a task."""

    index: int
    name: str
    classes: int  # outputs of its head
    likelihood: Callable[[Tensor], Likelihood] = Categorical  # what these say of the labels


@dataclass(frozen=True)
class Split:
    """Images as they are stored (uint8) and their labels; pixels become (x / 255 - mean) / std on the way out."""

    x: Tensor
    y: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        per_channel = (-1, *(1,) * (self.x.ndim - 2)) if len(self.mean) > 1 else (1,) * (self.x.ndim - 1)
        return (1 / (255 * std)).reshape(per_channel), (-mean / std).reshape(per_channel)

    def take(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """These samples, ready for a network."""
        scale, shift = self._scale_and_shift
        # index_select: of bytes, x[rows] takes many times as long
        x, y = (t[rows] if isinstance(rows, slice) else t.index_select(0, rows) for t in (self.x, self.y))
        pixels = x.to(torch.float32, copy=True)
        return torch.addcmul(shift, pixels, scale, out=pixels), y  # in place: large batches wait for memory

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples in the order they are stored."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def share(self, ranks: Ranks) -> "Split":
        """Of the samples, dealt to all ranks in turn, those of this one."""
        mine = slice(ranks.index, None, ranks.count)
        return self if ranks.count == 1 else replace(self, x=self.x[mine], y=self.y[mine])

    def subset(self, rows: Tensor) -> "Split":
        return replace(self, x=self.x[rows], y=self.y[rows])

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + self.y.nbytes

    def state_dict(self) -> dict[str, Any]:
        """For methods that keep samples."""
        return {"x": self.x, "y": self.y, "mean": self.mean, "std": self.std}

    @classmethod
    def loaded(cls, state: dict[str, Any]) -> "Split":
        return cls(state["x"], state["y"], tuple(state["mean"]), tuple(state["std"]))


@dataclass(frozen=True)
class TaskData:
    train: Split
    valid: Split
    test: Split


@dataclass(frozen=True)
class Stream:
    """The tasks of a benchmark. Their data are made when asked for: ``stream.load(task)``."""

    name: str
    shape: tuple[int, ...]
    tasks: tuple[Task, ...]
    load: Callable[[Task], TaskData] = field(repr=False)


def shuffled(count: int, seed: int) -> list[int]:
    """scikit-learn's ``shuffle(arange(count), random_state=seed)``, which the released loaders use."""
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    return order.tolist()


def first_tasks(order: list[int], count: int) -> list[int]:
    """A stream cut short."""
    if not 1 <= count <= len(order):
        raise ValueError(f"tasks={count} will not do: give how many of the {len(order)} tasks to learn")
    return order[:count]


def hold_out(train: Split, share: float, order: Tensor) -> tuple[Split, Split]:
    """Training and held part: the first ``share`` of the samples in the given order is held out, at least one."""
    count = max(1, int(share * len(train)))
    return train.subset(order[count:].sort().values), train.subset(order[:count].sort().values)


def validation_of(train: Split, source: str, seed: int, share: float = 0.1) -> tuple[Split, Split]:
    """``"train"``: the training set itself, as the released code has it for MNIST; ``"holdout"``: a share put aside."""
    if source == "train":
        return train, train
    if source == "holdout":
        return hold_out(train, share, torch.tensor(shuffled(len(train), seed)))
    raise ValueError(f"validation={source!r} is not known: use 'train' or 'holdout'")


def for_tuning(stream: Stream, seed: int) -> Stream:
    """The same tasks, tested on 10 % of their training samples, which are not trained on; test data are left alone."""

    def load(task: Task) -> TaskData:
        data = stream.load(task)
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed + 1))
        fit, held = hold_out(data.train, 0.1, order)
        return TaskData(fit, fit if data.valid is data.train else data.valid, held)

    return replace(stream, load=load)
