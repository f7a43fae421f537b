"""Ten digits in five two-class tasks: {0,1}, {2,3}, {4,5}, {6,7}, {8,9}, always in this order."""

from collections.abc import Callable
from functools import cache

import torch

from ..data import load_digits, load_mnist
from ..tasks import Split, Task, TaskData
from .registry import register_stream
from .stream import Seed, Stream, Validation, validation_of

_TASKS = tuple(Task(k, f"{2 * k} or {2 * k + 1}", 2) for k in range(5))


def _pair(split: Split, task: Task) -> Split:
    mine = split.subset(split.y // 2 == task.index)
    return Split(mine.x, mine.y % 2, mine.mean, mine.std)


def _stream(
    name: str, shape: tuple[int, ...], read: Callable[[], tuple[Split, Split]], validation: Validation, seed: int
) -> Stream:
    both = cache(read)  # read once, when the first task is loaded

    def load(task: Task) -> TaskData:
        train, test = both()
        return TaskData(*validation_of(_pair(train, task), validation, seed), _pair(test, task))

    return Stream(name, shape, _TASKS, load)


def digits5(*, seed: Seed = 0, validation: Validation = "train") -> Stream:
    """UCI's 8x8 digits, carried by the package. Every fourth image is for tests."""

    def read() -> tuple[Split, Split]:
        images, labels = load_digits()
        test = torch.arange(len(labels)) % 4 == 0
        pixels = images[:, None] * 15  # 0..16 becomes 0..240, the range of other pictures
        train, held = (Split(pixels[rows], labels[rows], (0.2873,), (0.3540,)) for rows in (~test, test))
        return train, held

    return _stream("digits5", (1, 8, 8), read, validation, seed)


def mnist5(*, seed: Seed = 0, validation: Validation = "train") -> Stream:
    """MNIST in five tasks, the paper's MNIST-5."""

    def read() -> tuple[Split, Split]:
        images = load_mnist()
        train = Split(images.train_x[:, None], images.train_y, (0.1307,), (0.3081,))
        return train, Split(images.test_x[:, None], images.test_y, (0.1307,), (0.3081,))

    return _stream("mnist5", (1, 28, 28), read, validation, seed)


register_stream("digits5", "UCI 8x8 digits in five two-class tasks, carried by the package", (), digits5)
register_stream("mnist5", "MNIST in five two-class tasks", ("mnist",), mnist5)
