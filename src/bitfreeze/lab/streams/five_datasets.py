"""Five datasets as 3 x 32 x 32 pictures: CIFAR-10, notMNIST, MNIST, SVHN and Fashion-MNIST."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch.nn.functional as F
from torch import Tensor

from ..data import Images, load_cifar10, load_fashion_mnist, load_mnist, load_notmnist, load_svhn
from ..tasks import Split, Task, TaskData
from .cifar import CIFAR_MEAN, CIFAR_STD
from .registry import register_stream
from .stream import Seed, Stream, TaskCount, Validation, first_tasks, shuffled, validation_of


@dataclass(frozen=True)
class _Source:
    name: str
    load: Callable[[], Images]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def split(self, x: Tensor, y: Tensor) -> Split:
        return Split(x if x.ndim == 4 else coloured(x), y, self.mean, self.std)


def coloured(grey: Tensor) -> Tensor:
    """Grey pictures of 28 x 28 with a black rim, as 32 x 32 in three equal channels."""
    return F.pad(grey, (2, 2, 2, 2))[:, None].expand(-1, 3, -1, -1)


_SOURCES = (
    _Source("CIFAR-10", load_cifar10, CIFAR_MEAN, CIFAR_STD),
    _Source("notMNIST", load_notmnist, (0.4254,), (0.4501,)),
    _Source("MNIST", load_mnist, (0.1,), (0.2752,)),
    _Source("SVHN", load_svhn, (0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
    _Source("Fashion-MNIST", load_fashion_mnist, (0.2190,), (0.3318,)),
)


def five_datasets(*, seed: Seed = 0, validation: Validation = "holdout", tasks: TaskCount = 5) -> Stream:
    """A task for each dataset. The seed shuffles the tasks. 15 % is held out."""
    sources = [_SOURCES[k] for k in first_tasks(shuffled(5, seed), tasks)]

    @cache  # a dataset is read once
    def read(index: int) -> Images:
        return sources[index].load()

    def load(task: Task) -> TaskData:
        images, split = read(task.index), sources[task.index].split
        train, test = split(images.train_x, images.train_y), split(images.test_x, images.test_y)
        return TaskData(*validation_of(train, validation, seed, share=0.15), test)

    return Stream("five_datasets", (3, 32, 32), tuple(Task(k, s.name, 10) for k, s in enumerate(sources)), load)


register_stream(
    "five_datasets",
    "CIFAR-10, notMNIST, MNIST, SVHN and Fashion-MNIST, a task each",
    ("cifar10", "notmnist", "mnist", "svhn", "fashion_mnist"),
    five_datasets,
)
