"""Permuted MNIST: ten ten-class tasks, each with its own order of the pixels."""

from functools import cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..data import load_mnist
from ..tasks import Split, Task, TaskData
from .registry import register_stream
from .stream import Seed, Stream, TaskCount, Validation, first_tasks, shuffled, validation_of

TASKS = 10
First = Annotated[
    Literal["permuted", "identity"], "the first task is permuted as in the released code, or plain as in the paper"
]


def pixel_order(identity: int, position: int, pixels: int) -> Tensor:
    """The pixel order of task ``identity`` at place ``position``, a permutation with seed 100 * identity + position."""
    return torch.tensor(shuffled(pixels, 100 * identity + position))


def pmnist(
    *, seed: Seed = 0, validation: Validation = "train", first: First = "permuted", tasks: TaskCount = TASKS
) -> Stream:
    """MNIST in ten tasks, each with its own order of the pixels."""
    read = cache(load_mnist)
    identities = first_tasks(shuffled(TASKS, seed), tasks)

    def permuted(x: Tensor, y: Tensor, task: Task) -> Split:
        flat = x.flatten(1)
        if first == "permuted" or task.index > 0:
            flat = flat[:, pixel_order(identities[task.index], task.index, flat.shape[1])]
        return Split(flat.reshape(len(y), 1, 28, 28), y, (0.1307,), (0.3081,))

    def load(task: Task) -> TaskData:
        images = read()
        train, test = permuted(images.train_x, images.train_y, task), permuted(images.test_x, images.test_y, task)
        return TaskData(*validation_of(train, validation, seed), test)

    names = [f"permutation {identity}" for identity in identities]
    if first == "identity":
        names[0] = "plain"
    return Stream("pmnist", (1, 28, 28), tuple(Task(k, name, 10) for k, name in enumerate(names)), load)


register_stream("pmnist", "MNIST ten times, each with its pixels in another order", ("mnist",), pmnist)
register_stream("pmnist_domain", "permuted MNIST with one head, by GPM's protocol", ("mnist",), pmnist)
