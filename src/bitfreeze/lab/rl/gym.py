"""Gymnasium environments by id, and variants of them. Observations are vectors or numbered states."""

import os
from collections.abc import Callable
from math import isfinite, prod
from typing import Any
from urllib.parse import parse_qsl

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from .actions import Actions, Choice, Numbers
from .environments import Step


class GymEnvironments:
    """A Gymnasium environment, with changes after a question mark: ``CartPole-v1?gravity=20&permute=1``.

    ``permute=k`` puts the numbers of an observation into another order, drawn with seed k. ``mirror=1`` flips their
    signs. ``reverse=1`` counts actions from the other end. Any other name is an attribute of the environment, such as
    its gravity.
    """

    def __init__(self, name: str, count: int, *, width: int = 0, threads: int = 1, pictures: bool = False) -> None:
        identity, _, query = name.partition("?")
        changes = dict(parse_qsl(query, keep_blank_values=True))
        given: dict[str, Any] = {"render_mode": "rgb_array"} if pictures else {}
        if pictures:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory and needs no screen

        def make() -> gymnasium.Env[Any, Any]:
            try:
                env = gymnasium.make(identity, **given)
            except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:  # ids may import modules
                raise ValueError(f"Gymnasium cannot make {identity!r}: {error}") from None
            if pictures and "rgb_array" not in env.metadata.get("render_modes", ()):
                raise ValueError(f"{identity} cannot be drawn: it has no render mode 'rgb_array'")
            return _changed(env, changes, name)

        self.envs = SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)
        seen, chosen = self.envs.single_observation_space, self.envs.single_action_space
        vectors = isinstance(seen, Box) and len(seen.shape) == 1
        if not (vectors or isinstance(seen, Discrete)) or not isinstance(chosen, Discrete | Box):
            raise ValueError(
                f"observations must be vectors or numbered states, and actions a choice or an array of numbers; "
                f"{identity} has observations {seen} and actions {chosen}"
            )
        self.states = seen if isinstance(seen, Discrete) else None
        self.chosen, self.count, self.name = chosen, count, name
        self.actions: Actions = Choice(int(chosen.n)) if isinstance(chosen, Discrete) else Numbers(prod(chosen.shape))
        size = int(seen.n) if isinstance(seen, Discrete) else seen.shape[0]  # type: ignore[index]
        self.shape: tuple[int, ...] = (max(size, width),)
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        order = np.arange(size)
        if "permute" in changes:
            order = np.random.RandomState(int(changes["permute"])).permutation(size)
        self.order, self.sign = order, -1.0 if changes.get("mirror") == "1" else 1.0
        self.reverse = changes.get("reverse") == "1"

    def reset(self, seed: int) -> NDArray[Any]:
        return self._seen(self.envs.reset(seed=seed)[0])

    def step(self, actions: NDArray[Any]) -> Step:
        seen, reward, terminated, truncated, info = self.envs.step(self._for_the_environment(actions))
        if not np.isfinite(reward).all():
            raise ValueError(f"rewards must be finite, got infinite ones or nan from {self.name}")
        over, cut = terminated | truncated, truncated & ~terminated
        now = self._seen(seen)
        last = now
        if cut.any():
            last = now.copy()
            for row in np.flatnonzero(cut):
                last[row] = self._seen(info["final_obs"][row][None])[0]
        return Step(now, reward.astype(np.float32), over, over, cut, last)

    def _for_the_environment(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions as the environment counts them, or numbers within its bounds, which lie at -1 and 1 here."""
        if isinstance(self.chosen, Discrete):
            last, first = int(self.chosen.n) - 1, int(self.chosen.start)
            return first + (last - actions if self.reverse else actions)
        low, high = self.chosen.low, self.chosen.high
        numbers = (-actions if self.reverse else actions).reshape(-1, *self.chosen.shape)
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):  # from infinite bounds, whose results are not used
            within = low + (numbers.clip(-1, 1) + 1) / 2 * (high - low)
        return np.where(bounded, within, numbers.clip(low, high)).astype(self.chosen.dtype)

    def _seen(self, raw: NDArray[Any]) -> NDArray[Any]:
        if self.states is not None:
            raw = np.eye(int(self.states.n))[raw - self.states.start]
        result = np.zeros((len(raw), *self.shape), self.dtype)
        result[:, : raw.shape[1]] = self.sign * raw[:, self.order]
        if not np.isfinite(result).all():
            raise ValueError(f"observations must be finite, got infinite ones or nan from {self.name}")
        return result

    def picture(self) -> NDArray[np.uint8]:
        try:
            frame: NDArray[np.uint8] = self.envs.envs[0].render()  # type: ignore[assignment]
        except gymnasium.error.DependencyNotInstalled as missing:
            raise ValueError(f"{self.name} cannot be drawn: {missing}") from None
        return frame

    def close(self) -> None:
        self.envs.close()


def _changed(env: gymnasium.Env[Any, Any], changes: dict[str, str], name: str) -> gymnasium.Env[Any, Any]:
    """The environment with its attributes changed. Raises a ValueError for a change that it cannot have."""
    for key, value in changes.items():
        if key not in _CHANGES and not isinstance(getattr(env.unwrapped, key, None), int | float):
            raise ValueError(
                f"a change must be of {', '.join(_CHANGES)} or of a number of the environment, got {key!r} in {name!r}"
            )
        fits, wanted = _CHANGES.get(key, (lambda text: isfinite(float(text)), "a finite number"))
        if not _fits(value, fits):
            raise ValueError(f"{key} must be {wanted}, got {value} in {name!r}")
        if key not in _CHANGES:
            try:
                setattr(env.unwrapped, key, float(value))
            except AttributeError:
                raise ValueError(f"{key!r} in {name!r} cannot be changed: the environment does not allow it") from None
    return env


def _fits(text: str, test: Callable[[str], bool]) -> bool:
    try:
        return test(text)
    except ValueError:  # from int or float, because the text is no number
        return False


_CHANGES: dict[str, tuple[Callable[[str], bool], str]] = {
    "permute": (lambda text: 0 <= int(text) < 2**32, "a whole number from 0 to 2^32 - 1"),
    "mirror": (lambda text: text in ("0", "1"), "0 or 1"),
    "reverse": (lambda text: text in ("0", "1"), "0 or 1"),
}
