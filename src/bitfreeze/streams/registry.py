"""Streams by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .cifar import alt_cifar
from .five_datasets import five_datasets
from .mini_imagenet import mini_imagenet20
from .pairs import digits5, mnist5
from .permuted import pmnist
from .stream import Stream, for_tuning


@dataclass(frozen=True)
class StreamRecord:
    name: str
    description: str
    needs: tuple[str, ...]  # datasets, as `bitfreeze data` names them
    make: Callable[..., Any]  # (seed, **options): the scenario's seed, not the training's; a Stream, or an rl.Games
    preset: Mapping[str, Any] | None = None  # how it is trained; None: the package has a file of its name
    trainer: str = "supervised"  # what trains it: "supervised" or "reinforcement"


streams: dict[str, StreamRecord] = {}


def register_stream(
    name: str,
    description: str,
    needs: tuple[str, ...],
    make: Callable[..., Any],
    preset: Mapping[str, Any] | None = None,
    trainer: str = "supervised",
) -> None:
    """``preset``, for a stream of your own, has the tables of a file in experiments/presets: network, training, ..."""
    streams[name] = StreamRecord(name, description, needs, make, preset, trainer)


def make_stream(name: str, *, seed: int = 0, tuning: bool = False, **options: Any) -> Stream:
    """``tuning``: a part of the training set takes the place of the test set, so that settings can be chosen."""
    stream: Stream = streams[name].make(seed=seed, **options)
    return for_tuning(stream, seed) if tuning else stream


register_stream("digits5", "UCI 8x8 digits in five two-class tasks, carried by the package", (), digits5)
register_stream("mnist5", "MNIST in five two-class tasks", ("mnist",), mnist5)
register_stream("pmnist", "MNIST ten times, each with its pixels in another order", ("mnist",), pmnist)
register_stream(
    "alt_cifar",
    "CIFAR-10 in five two-class and CIFAR-100 in five twenty-class tasks",
    ("cifar10", "cifar100"),
    alt_cifar,
)
register_stream(
    "five_datasets",
    "CIFAR-10, notMNIST, MNIST, SVHN and Fashion-MNIST, a task each",
    ("cifar10", "notmnist", "mnist", "svhn", "fashion_mnist"),
    five_datasets,
)
register_stream("mini_imagenet20", "mini-ImageNet in twenty five-class tasks", ("mini_imagenet",), mini_imagenet20)
