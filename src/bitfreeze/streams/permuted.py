"""Permuted MNIST: ten tasks of ten classes, each with its own order of the pixels."""

from functools import cache

import torch
from torch import Tensor

from ..data import load_mnist
from .stream import Split, Stream, Task, TaskData, first_tasks, shuffled, validation_of

TASKS = 10


def pixel_order(identity: int, position: int, pixels: int) -> Tensor:
    """The permutation of the task ``identity`` that comes at ``position``: seeded with 100 * identity + position."""
    return torch.tensor(shuffled(pixels, 100 * identity + position))


def pmnist(*, seed: int = 0, validation: str = "train", first: str = "permuted", tasks: int = TASKS) -> Stream:
    """``first="identity"``: plain MNIST comes first, as the paper says; ``"permuted"``: as its code does."""
    if first not in ("permuted", "identity"):
        raise ValueError(f"first={first!r} is not known: use 'permuted' or 'identity'")
    read = cache(load_mnist)
    identities = first_tasks(shuffled(TASKS, seed), tasks)

    def permuted(x: Tensor, y: Tensor, task: Task) -> Split:
        flat = x.flatten(1)
        if first == "permuted" or task.index > 0:
            flat = flat[:, pixel_order(identities[task.index], task.index, flat.shape[1])]
        return Split(flat.reshape(len(y), 1, 28, 28), y, (0.1307,), (0.3081,))

    def load(task: Task) -> TaskData:
        images = read()
        fit, valid = validation_of(permuted(images.train_x, images.train_y, task), validation, seed)
        return TaskData(fit, valid, permuted(images.test_x, images.test_y, task))

    names = [f"permutation {identity}" for identity in identities]
    if first == "identity":
        names[0] = "plain"
    return Stream("pmnist", (1, 28, 28), tuple(Task(k, name, 10) for k, name in enumerate(names)), load)
