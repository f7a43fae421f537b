"""Streams whose tasks are environments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ..options import checked, options_of
from ..streams import register_stream, streams
from ..tasks import Task
from .actions import Actions
from .game_spec import GameSpec

ATARI6 = tuple(
    f"ALE/{game}-v5" for game in ("KungFuMaster", "Boxing", "Jamesbond", "Krull", "Riverraid", "SpaceInvaders")
)
CONTROL = (
    "CartPole-v1",
    "CartPole-v1?permute=1&gravity=20",
    "CartPole-v1?permute=2&force_mag=20",
    "CartPole-v1?permute=3&mirror=1",
)
EnvironmentIds = Annotated[Sequence[str], "environments in the order in which they are learned: Gymnasium ids"]


@dataclass(frozen=True)
class Games:
    """A stream whose tasks are environments, all with observations of the same ``shape``."""

    name: str
    shape: tuple[int, ...]
    tasks: tuple[Task, ...]
    specs: tuple[GameSpec, ...]
    actions: tuple[Actions, ...]


def games(name: str, envs: Sequence[str]) -> Games:
    """A task for each environment. Shorter observation vectors are filled up to the longest."""
    if not envs:
        raise ValueError("stream.envs must name at least one environment, got []")
    alone = [GameSpec(env).make(1) for env in envs]
    for one in alone:
        one.close()
    shapes = {one.shape for one in alone}
    if len({len(shape) for shape in shapes}) > 1:
        raise ValueError(
            f"stream.envs must all show pictures or all vectors, got shapes {sorted(shapes)} of {', '.join(envs)}"
        )
    shape = max(shapes)
    actions = tuple(one.actions for one in alone)
    tasks = tuple(Task(k, _name(envs, k), mine.outputs, mine.likelihood) for k, mine in enumerate(actions))
    specs = tuple(GameSpec(env, shape[0] if len(shape) == 1 else 0) for env in envs)
    return Games(name, shape, tasks, specs, actions)


def _name(envs: Sequence[str], place: int) -> str:
    """The environment's id, with its place where it comes again, because columns and curves need distinct names."""
    return envs[place] if envs[place] not in envs[:place] else f"{envs[place]} ({place + 1})"


def make_games(name: str, **options: Any) -> Games:
    """The stream of games of this name. Options that are not given keep their defaults."""
    make = streams[name].make
    made: Games = make(**checked("stream", options_of(make), options))
    return made


def atari6(*, envs: EnvironmentIds = ATARI6) -> Games:
    return games("atari6", envs)


def control(*, envs: EnvironmentIds = CONTROL) -> Games:
    return games("control", envs)


register_stream("atari6", "six Atari games, or those of stream.envs", (), atari6, trainer="reinforcement")
register_stream(
    "control",
    "CartPole four times, changed, or Gymnasium environments of your own",
    (),
    control,
    trainer="reinforcement",
)
