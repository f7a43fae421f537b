"""Five sets of pictures for a pretrained network: CIFAR-10, SVHN, Fashion-MNIST, CIFAR-100 in part, and notMNIST."""

from collections.abc import Callable
from functools import cache
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from ..data import Images, load_cifar10, load_cifar100, load_fashion_mnist, load_notmnist, load_svhn
from ..tasks import Split, Task, TaskData
from .five_datasets import coloured
from .registry import register_stream
from .stream import Seed, Stream, TaskCount, first_tasks

MEAN, STD = (127 / 255,), (128 / 255,)  # as EfficientNet-Lite was trained
VALID = 100  # pictures of a task for the learning-rate schedule


class _Source(NamedTuple):
    name: str
    load: Callable[[], Images]
    classes: int  # the first so many


_SOURCES = (
    _Source("CIFAR-10", load_cifar10, 10),
    _Source("SVHN", load_svhn, 10),
    _Source("Fashion-MNIST", load_fashion_mnist, 10),
    _Source("CIFAR-100 classes 0 to 19", load_cifar100, 20),
    _Source("notMNIST", load_notmnist, 10),
)


def vision5(
    *,
    seed: Seed = 0,
    train: Annotated[int, "pictures of a task to train on"] = 1000,
    test: Annotated[int, "pictures of a task to test on"] = 1000,
    tasks: TaskCount = 5,
) -> Stream:
    """A task for each set, always in this order. The seed draws the pictures; 100 more of each are held out."""
    for name, count in (("train", train), ("test", test)):
        if count < 10:
            raise ValueError(f"stream.{name} must be at least 10, got {count}")
    sources = [_SOURCES[k] for k in first_tasks(list(range(5)), tasks)]

    @cache  # a dataset is read once, and few of its pictures are kept
    def data(index: int) -> TaskData:
        images, classes = sources[index].load(), sources[index].classes
        drawn = torch.Generator().manual_seed(seed)
        held, fit = _drawn(images.train_x, images.train_y, classes, (VALID, train), drawn)
        (tested,) = _drawn(images.test_x, images.test_y, classes, (test,), drawn)
        return TaskData(fit, held, tested)

    named = tuple(Task(k, source.name, source.classes) for k, source in enumerate(sources))
    return Stream("vision5", (3, 32, 32), named, lambda task: data(task.index))


def _drawn(x: Tensor, y: Tensor, classes: int, counts: tuple[int, ...], generator: torch.Generator) -> list[Split]:
    """Splits of so many pictures each, none in two of them. The last one may be shorter, where there are too few."""
    mine = torch.nonzero(y < classes).flatten()
    order = mine[torch.randperm(len(mine), generator=generator)][: sum(counts)]
    parts = order.tensor_split(torch.tensor(counts).cumsum(0)[:-1].tolist())
    return [Split(x[part] if x.ndim == 4 else coloured(x[part]), y[part], MEAN, STD) for part in parts]


register_stream(
    "vision5",
    "CIFAR-10, SVHN, Fashion-MNIST, twenty classes of CIFAR-100 and notMNIST, for a pretrained network",
    ("cifar10", "svhn", "fashion_mnist", "cifar100", "notmnist", "efficientnet_lite0"),
    vision5,
)
