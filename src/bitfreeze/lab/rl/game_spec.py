"""Environments by name."""

from collections.abc import Callable
from dataclasses import dataclass

from ..._messages import install
from .environments import Environments


@dataclass(frozen=True)
class GameSpec:
    """An environment by name: ``ALE/Boxing-v5``, or a Gymnasium id, also with changes, ``CartPole-v1?gravity=20``.

    Observation vectors shorter than ``width`` are filled up with zeros, so that tasks share a network.
    """

    name: str
    width: int = 0

    def make(self, count: int, *, threads: int = 1, pictures: bool = False) -> Environments:
        """``count`` copies of the environment."""
        return _maker(self.name)(self.name, count, width=self.width, threads=threads, pictures=pictures)


def _maker(name: str) -> Callable[..., Environments]:
    try:
        if name.startswith("ALE/"):
            from .atari import AtariEnvironments

            return AtariEnvironments
        from .gym import GymEnvironments
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"environments need the extra 'atari' ({missing.name} is not installed): {install('atari')}"
        ) from None
    return GymEnvironments
