"""Streams whose tasks are environments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..streams import Task, register_stream, streams
from .actions import Actions
from .environments import World

ATARI6 = tuple(
    f"ALE/{game}-v5" for game in ("KungFuMaster", "Boxing", "Jamesbond", "Krull", "Riverraid", "SpaceInvaders")
)
CONTROL = (
    "CartPole-v1",
    "CartPole-v1?permute=1&gravity=20",
    "CartPole-v1?permute=2&force_mag=20",
    "CartPole-v1?permute=3&mirror=1",
)


@dataclass(frozen=True)
class Games:
    """Tasks that are played: one world each. ``shape`` is that of an observation, the same for all."""

    name: str
    shape: tuple[int, ...]
    tasks: tuple[Task, ...]
    worlds: tuple[World, ...]
    actions: tuple[Actions, ...]


def games(name: str, envs: Sequence[str]) -> Games:
    """These environments, one task each. Vectors of different lengths are filled up to the longest."""
    if not envs:
        raise ValueError("stream.envs is empty: name at least one environment")
    alone = [World(env).make(1) for env in envs]
    for one in alone:
        one.close()
    shapes = {one.shape for one in alone}
    if len({len(shape) for shape in shapes}) > 1:
        raise ValueError(f"pictures and vectors cannot share a network: {', '.join(envs)} have shapes {sorted(shapes)}")
    shape = max(shapes)
    actions = tuple(one.actions for one in alone)
    tasks = tuple(Task(k, _name(envs, k), mine.outputs, mine.likelihood) for k, mine in enumerate(actions))
    worlds = tuple(World(env, shape[0] if len(shape) == 1 else 0) for env in envs)
    return Games(name, shape, tasks, worlds, actions)


def _name(envs: Sequence[str], place: int) -> str:
    """An environment that comes again has its place beside its id, for columns and curves go by names."""
    return envs[place] if envs[place] not in envs[:place] else f"{envs[place]} ({place + 1})"


def make_games(name: str, **options: Any) -> Games:
    """A stream of games by its name."""
    made: Games = streams[name].make(**options)
    return made


def atari6(*, envs: Sequence[str] = ATARI6) -> Games:
    return games("atari6", envs)


def control(*, envs: Sequence[str] = CONTROL) -> Games:
    return games("control", envs)


register_stream("atari6", "six Atari games, or those of stream.envs", (), atari6, trainer="reinforcement")
register_stream(
    "control",
    "CartPole four times, changed, or Gymnasium environments of your own",
    (),
    control,
    trainer="reinforcement",
)
