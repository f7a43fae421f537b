"""Streams by name."""

from collections.abc import Callable
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
    make: Callable[..., Any]  # (seed, **options): the scenario's seed, not the training's; a Stream, or an rl.Games
    trainer: str = "supervised"  # what trains it: "supervised" or "reinforcement"


streams: dict[str, StreamRecord] = {}


def register_stream(
    name: str, description: str, needs: tuple[str, ...], make: Callable[..., Any], trainer: str = "supervised"
) -> None:
    streams[name] = StreamRecord(name, description, needs, make, trainer)


def make_stream(name: str, *, seed: int = 0, tuning: bool = False, **options: Any) -> Stream:
    """``tuning``: a part of the training set takes the place of the test set, so that settings can be chosen."""
    stream: Stream = streams[name].make(seed=seed, **options)
    return for_tuning(stream, seed) if tuning else stream


register_stream("digits5", "UCI 8x8 digits in five two-class tasks, carried by the package", (), digits5)
register_stream("mnist5", "MNIST in five two-class tasks", ("mnist",), mnist5)
register_stream("pmnist", "MNIST ten times, each with its pixels in another order", ("mnist",), pmnist)
