"""Gymnasium environments by id, with observations that are vectors and a choice of actions; and variants of them."""

import os
from collections.abc import Callable
from math import isfinite
from typing import Any
from urllib.parse import parse_qsl

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from .environments import Step


class GymEnvironments:
    """``CartPole-v1?gravity=20&permute=1``: after the question mark stand changes.

    ``permute=k`` puts the numbers of an observation into another order, chosen by the seed k; ``mirror=1`` gives them
    the other sign; ``reverse=1`` counts actions from the other end; any other name is an attribute of the environment,
    such as its gravity.
    """

    def __init__(self, name: str, count: int, *, width: int = 0, threads: int = 1, pictures: bool = False) -> None:
        identity, _, query = name.partition("?")
        changes = dict(parse_qsl(query, keep_blank_values=True))
        given: dict[str, Any] = {"render_mode": "rgb_array"} if pictures else {}
        if pictures:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory: no screen is needed

        def make() -> gymnasium.Env[Any, Any]:
            try:
                env = gymnasium.make(identity, **given)
            except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:  # it may import a module first
                raise ValueError(f"Gymnasium cannot make {identity!r}: {error}") from None
            if pictures and "rgb_array" not in env.metadata.get("render_modes", ()):
                raise ValueError(f"{identity} cannot be drawn: it has no render mode 'rgb_array'")
            return _changed(env, changes, name)

        self.envs = SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)
        seen, chosen = self.envs.single_observation_space, self.envs.single_action_space
        if not isinstance(seen, Box) or len(seen.shape) != 1 or not isinstance(chosen, Discrete):
            raise ValueError(
                f"{identity} has observations {seen} and actions {chosen}: only vectors and a choice among actions can "
                "be used here"
            )
        size, self.count, self.name = seen.shape[0], count, name
        self.actions, self.first_action = int(chosen.n), int(chosen.start)
        self.shape: tuple[int, ...] = (max(size, width),)
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        order = np.arange(size)
        if "permute" in changes:
            order = np.random.RandomState(int(changes["permute"])).permutation(size)
        self.order, self.sign = order, -1.0 if changes.get("mirror") == "1" else 1.0
        self.reverse = changes.get("reverse") == "1"

    def reset(self, seed: int) -> NDArray[Any]:
        return self._seen(self.envs.reset(seed=seed)[0])

    def step(self, actions: NDArray[np.int64]) -> Step:
        chosen = self.actions - 1 - actions if self.reverse else actions
        seen, reward, terminated, truncated, info = self.envs.step(chosen + self.first_action)
        if not np.isfinite(reward).all():
            raise ValueError(f"{self.name} has rewards that are not finite")
        over, cut = terminated | truncated, truncated & ~terminated
        now = self._seen(seen)
        last = now
        if cut.any():
            last = now.copy()
            for row in np.flatnonzero(cut):
                last[row] = self._seen(info["final_obs"][row][None])[0]
        return Step(now, reward.astype(np.float32), over, over, cut, last)

    def _seen(self, raw: NDArray[Any]) -> NDArray[Any]:
        result = np.zeros((len(raw), *self.shape), self.dtype)
        result[:, : raw.shape[1]] = self.sign * raw[:, self.order]
        if not np.isfinite(result).all():
            raise ValueError(f"{self.name} has observations that are not finite")
        return result

    def picture(self) -> NDArray[np.uint8]:
        try:
            frame: NDArray[np.uint8] = self.envs.envs[0].render()  # type: ignore[assignment]
        except gymnasium.error.DependencyNotInstalled as missing:
            raise ValueError(f"this environment cannot be drawn: {missing}") from None
        return frame

    def close(self) -> None:
        self.envs.close()


def _changed(env: gymnasium.Env[Any, Any], changes: dict[str, str], name: str) -> gymnasium.Env[Any, Any]:
    known: dict[str, Callable[[str], Any]] = {"permute": _seed, "mirror": _yes_or_no, "reverse": _yes_or_no}
    for key, value in changes.items():
        if key not in known and not isinstance(getattr(env.unwrapped, key, None), int | float):
            raise ValueError(
                f"{name!r} changes {key!r}, which is no number of that environment nor one of {', '.join(known)}"
            )
        try:
            number = known.get(key, _finite)(value)
        except ValueError:
            odd = {"permute": "no whole number from 0 on", "mirror": "neither 0 nor 1", "reverse": "neither 0 nor 1"}
            raise ValueError(f"{key}={value} in {name!r} is {odd.get(key, 'no number')}") from None
        if key not in known:
            try:
                setattr(env.unwrapped, key, number)
            except AttributeError:
                raise ValueError(f"{name!r} changes {key!r}, which that environment does not let be set") from None
    return env


def _yes_or_no(text: str) -> bool:
    return bool(("0", "1").index(text))


def _seed(text: str) -> int:
    if not 0 <= int(text) < 2**32:
        raise ValueError
    return int(text)


def _finite(text: str) -> float:
    if not isfinite(float(text)):
        raise ValueError
    return float(text)
