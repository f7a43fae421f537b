"""Streams by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .pairs import digits5, mnist5
from .permuted import pmnist
from .stream import Stream, for_tuning


@dataclass(frozen=True)
class StreamRecord:
    name: str
    description: str
    needs: tuple[str, ...]  # datasets, as `bitfreeze data` names them
    make: Callable[..., Stream]  # (seed, **options): the scenario's seed, not the training's
    preset: Mapping[str, Any] | None = None  # how it is trained; None: the package has a file of its name


streams: dict[str, StreamRecord] = {}


def register_stream(
    name: str,
    description: str,
    needs: tuple[str, ...],
    make: Callable[..., Stream],
    preset: Mapping[str, Any] | None = None,
) -> None:
    """``preset``, for a stream of your own, has the tables of a file in experiments/presets: network, training, ..."""
    streams[name] = StreamRecord(name, description, needs, make, preset)


def make_stream(name: str, *, seed: int = 0, tuning: bool = False, **options: Any) -> Stream:
    """``tuning``: a part of the training set takes the place of the test set, so that settings can be chosen."""
    stream = streams[name].make(seed=seed, **options)
    return for_tuning(stream, seed) if tuning else stream


register_stream("digits5", "UCI 8x8 digits in five two-class tasks, carried by the package", (), digits5)
register_stream("mnist5", "MNIST in five two-class tasks", ("mnist",), mnist5)
register_stream("pmnist", "MNIST ten times, each with its pixels in another order", ("mnist",), pmnist)
