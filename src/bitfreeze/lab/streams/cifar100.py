"""CIFAR-100 in ten tasks of ten classes, the field's common benchmark, or in twenty of five."""

from functools import cache

import torch
from torch import Tensor

from ..data import load_cifar100
from ..tasks import Split, Task, TaskData
from .cifar import CIFAR_MEAN, CIFAR_STD
from .registry import register_stream
from .stream import Seed, Stream, TaskCount, Validation, first_tasks, shuffled, validation_of


def cifar100_10(*, seed: Seed = 0, validation: Validation = "holdout", tasks: TaskCount = 10) -> Stream:
    """Ten tasks of ten classes, in the order of the labels. The seed chooses the 5 % that are held out."""
    return _split("cifar100_10", 10, seed, validation, tasks)


def cifar100_20(*, seed: Seed = 0, validation: Validation = "holdout", tasks: TaskCount = 20) -> Stream:
    """Twenty tasks of five classes, in the order of the labels. The seed chooses the 5 % that are held out."""
    return _split("cifar100_20", 20, seed, validation, tasks)


def _split(name: str, parts: int, seed: int, validation: Validation, tasks: int) -> Stream:
    classes = 100 // parts
    read = cache(load_cifar100)

    def mine(task: Task, x: Tensor, y: Tensor) -> Split:
        """The task's samples in an order of the seed: a norm by batch must see all classes in each batch of a test."""
        rows = (y // classes == task.index).nonzero()[:, 0]
        rows = rows[torch.tensor(shuffled(len(rows), seed))]
        return Split(x[rows], y[rows] % classes, CIFAR_MEAN, CIFAR_STD)

    def load(task: Task) -> TaskData:
        images = read()
        train, test = mine(task, images.train_x, images.train_y), mine(task, images.test_x, images.test_y)
        return TaskData(*validation_of(train, validation, seed, share=0.05), test)

    first = [k * classes for k in first_tasks(list(range(parts)), tasks)]
    named = tuple(Task(k, f"classes {c} to {c + classes - 1}", classes) for k, c in enumerate(first))
    return Stream(name, (3, 32, 32), named, load)


register_stream("cifar100_10", "CIFAR-100 in ten ten-class tasks, by GPM's protocol", ("cifar100",), cifar100_10)
register_stream("cifar100_20", "CIFAR-100 in twenty five-class tasks, by GPM's protocol", ("cifar100",), cifar100_20)
