"""Several copies of one environment, stepped together: the interface for PPO and evaluation."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .actions import Actions

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Step:
    """The outcome of a step, a row for each copy. A copy whose game is over has begun another one within the step."""

    seen: NDArray[Any]  # observations for the next actions
    reward: NDArray[np.float32]  # rewards of the environment, not clipped
    ended: Flags  # an episode of the learner ended: a life or a game
    over: Flags  # the game is over, so that its score is known
    cut: Flags  # the game is over only because its time was up
    last: NDArray[Any]  # last observations of the games that were cut; other rows mean nothing


class Environments(Protocol):
    """``count`` copies of one environment."""

    count: int
    actions: Actions
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def reset(self, seed: int) -> NDArray[Any]:
        """Begin a game in every copy and return the observations. The same seed begins the same games."""

    def step(self, actions: NDArray[Any]) -> Step:
        """Take an action in every copy."""

    def picture(self) -> NDArray[np.uint8]:
        """The first copy as a colour picture, where the environment was made with ``pictures``."""

    def close(self) -> None: ...


def derived_seed(*numbers: int) -> int:
    """A seed made from these numbers. Neighbouring numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 2  # copies count up from it, within 31 bits
