"""Alternating CIFAR: five two-class tasks of CIFAR-10 and five twenty-class tasks of CIFAR-100."""

from dataclasses import dataclass
from functools import cache

from torch import Tensor

from ..data import load_cifar10, load_cifar100
from ..tasks import Split, Task, TaskData
from .registry import register_stream
from .stream import Seed, Stream, TaskCount, Validation, first_tasks, shuffled, validation_of

CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)


@dataclass(frozen=True)
class _Part:
    """The ``classes`` classes of a dataset from ``classes * index`` on."""

    dataset: str
    index: int
    classes: int

    @property
    def name(self) -> str:
        first = self.index * self.classes
        return f"{self.dataset} classes {first} to {first + self.classes - 1}"


_PARTS = (*(_Part("CIFAR-10", k, 2) for k in range(5)), *(_Part("CIFAR-100", k, 20) for k in range(5)))


def alt_cifar(*, seed: Seed = 0, validation: Validation = "holdout", tasks: TaskCount = 10) -> Stream:
    """CIFAR in ten tasks. The seed shuffles them, so the two datasets do not strictly alternate. 10 % is held out."""
    read = {"CIFAR-10": cache(load_cifar10), "CIFAR-100": cache(load_cifar100)}
    parts = [_PARTS[k] for k in first_tasks(shuffled(10, seed), tasks)]

    def load(task: Task) -> TaskData:
        part = parts[task.index]
        images = read[part.dataset]()

        def mine(x: Tensor, y: Tensor) -> Split:
            rows = y // part.classes == part.index
            return Split(x[rows], y[rows] % part.classes, CIFAR_MEAN, CIFAR_STD)

        train, test = mine(images.train_x, images.train_y), mine(images.test_x, images.test_y)
        return TaskData(*validation_of(train, validation, seed), test)

    named = tuple(Task(k, part.name, part.classes) for k, part in enumerate(parts))
    return Stream("alt_cifar", (3, 32, 32), named, load)


register_stream(
    "alt_cifar",
    "CIFAR-10 in five two-class and CIFAR-100 in five twenty-class tasks",
    ("cifar10", "cifar100"),
    alt_cifar,
)
