"""Alternating CIFAR: five tasks of two classes of CIFAR-10 and five of twenty of CIFAR-100, in an order by the seed."""

from dataclasses import dataclass
from functools import cache

from torch import Tensor

from ..data import load_cifar10, load_cifar100
from .stream import Split, Stream, Task, TaskData, first_tasks, shuffled, validation_of

CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)


@dataclass(frozen=True)
class _Part:
    """Classes ``classes * index`` and on of one of the two datasets."""

    dataset: str
    index: int
    classes: int

    @property
    def name(self) -> str:
        first = self.index * self.classes
        return f"{self.dataset} classes {first} to {first + self.classes - 1}"


_PARTS = (*(_Part("CIFAR-10", k, 2) for k in range(5)), *(_Part("CIFAR-100", k, 20) for k in range(5)))


def alt_cifar(*, seed: int = 0, validation: str = "holdout", tasks: int = 10) -> Stream:
    """The seed shuffles all ten tasks, so they do not strictly alternate; ``tasks`` keeps the first few of them."""
    read = {"CIFAR-10": cache(load_cifar10), "CIFAR-100": cache(load_cifar100)}
    parts = [_PARTS[k] for k in first_tasks(shuffled(10, seed), tasks)]

    def load(task: Task) -> TaskData:
        part = parts[task.index]
        images = read[part.dataset]()

        def mine(x: Tensor, y: Tensor) -> Split:
            rows = y // part.classes == part.index
            return Split(x[rows], y[rows] % part.classes, CIFAR_MEAN, CIFAR_STD)

        fit, valid = validation_of(mine(images.train_x, images.train_y), validation, seed)
        return TaskData(fit, valid, mine(images.test_x, images.test_y))

    return Stream(
        "alt_cifar", (3, 32, 32), tuple(Task(k, part.name, part.classes) for k, part in enumerate(parts)), load
    )
