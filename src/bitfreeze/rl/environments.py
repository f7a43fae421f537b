"""Several copies of one environment, stepped together: what PPO and evaluation know of any of them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..missing import install
from .actions import Actions

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Step:
    """What a step brought, a row for each copy. A copy whose game is over has begun another one within the step."""

    seen: NDArray[Any]  # what the next actions are chosen from
    reward: NDArray[np.float32]  # as the environment gave it: nothing is clipped here
    ended: Flags  # whether an episode of the learner ended: a life or a game
    over: Flags  # whether the game is over, so that its score is known
    cut: Flags  # whether it is over only because its time was up
    last: NDArray[Any]  # what was seen last in the games that were cut; of no meaning elsewhere


class Environments(Protocol):
    """``count`` copies of one environment."""

    count: int
    actions: Actions
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def reset(self, seed: int) -> NDArray[Any]:
        """Begin a game in every copy; the same seed begins the same games."""

    def step(self, actions: NDArray[Any]) -> Step: ...

    def picture(self) -> NDArray[np.uint8]:
        """The first copy as a picture in colours; only if it was made with ``pictures``."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class World:
    """An environment by name: ``ALE/Boxing-v5``, or a Gymnasium id, which may have changes: ``CartPole-v1?gravity=20``.

    ``width``: observations that are shorter vectors are filled up with zeros, so that tasks share a network.
    """

    name: str
    width: int = 0

    def make(self, count: int, *, threads: int = 1, pictures: bool = False) -> Environments:
        return _maker(self.name)(self.name, count, width=self.width, threads=threads, pictures=pictures)


def _maker(name: str) -> Callable[..., Environments]:
    try:
        if re.match(r"ALE/", name):
            from .atari import AtariEnvironments

            return AtariEnvironments
        from .gym import GymEnvironments
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"environments need the extra 'atari' ({missing.name} is not installed): {install('atari')}"
        ) from None
    return GymEnvironments


def derived_seed(*numbers: int) -> int:
    """A seed for one purpose among many, far from those of its neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 2  # environments count up from it in 31 bits
