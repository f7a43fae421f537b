"""A stream: a sequence of tasks, each with its own images and classes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from ..tasks import Split, Task, TaskData

Seed = Annotated[int, "seed of the scenario: order of tasks and held-out samples. The training has its own seed"]
Validation = Annotated[
    Literal["train", "holdout"], "the learning-rate schedule looks at the training set, or at a share put aside"
]
TaskCount = Annotated[int, "tasks to learn; fewer than all keep the first ones"]


@dataclass(frozen=True)
class Stream:
    """The tasks of a benchmark.

    Attributes:
        name: the stream's name.
        shape: shape of one input.
        tasks: the tasks in the order in which they are learned.
        load: returns the data of a task. A run calls it when the task comes.
    """

    name: str
    shape: tuple[int, ...]
    tasks: tuple[Task, ...]
    load: Callable[[Task], TaskData] = field(repr=False)


def shuffled(count: int, seed: int) -> list[int]:
    """scikit-learn's ``shuffle(arange(count), random_state=seed)``, which the released loaders use."""
    order: list[int] = np.random.RandomState(seed).permutation(count).tolist()
    return order


def first_tasks(order: list[int], count: int) -> list[int]:
    """The first ``count`` tasks of a stream."""
    if not 1 <= count <= len(order):
        raise ValueError(f"stream.tasks must be from 1 to {len(order)}, got {count}")
    return order[:count]


def hold_out(train: Split, share: float, order: Tensor) -> tuple[Split, Split]:
    """Training part and held-out part. The first ``share`` of the samples in ``order`` is held out, at least one."""
    count = max(1, int(share * len(train)))
    return train.subset(order[count:].sort().values), train.subset(order[:count].sort().values)


def validation_of(train: Split, source: Validation, seed: int, share: float = 0.1) -> tuple[Split, Split]:
    """Training and validation set. The released code validates on the training set for MNIST."""
    if source == "train":
        return train, train
    return hold_out(train, share, torch.tensor(shuffled(len(train), seed)))


def for_tuning(stream: Stream, seed: int) -> Stream:
    """The same stream, tested on 10 % of the training samples, which are not trained on. Test data are not used.

    A task that is known already is tested on its validation samples, because nothing chooses a schedule by them.
    """

    def load(task: Task) -> TaskData:
        data = stream.load(task)
        if task.known:
            return TaskData(data.train, data.valid, data.valid)
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed + 1))
        fit, held = hold_out(data.train, 0.1, order)
        return TaskData(fit, fit if data.valid is data.train else data.valid, held)

    return replace(stream, load=load)
