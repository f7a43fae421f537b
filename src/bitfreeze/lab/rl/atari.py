"""Atari games through ale-py's own vector environment, with the preprocessing of the paper's experiments."""

import re
from typing import Any

import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from .actions import Actions, Choice
from .environments import Flags, Step

STACK = 4
SKIP = 4


class AtariEnvironments:
    """Copies of an Atari game. A game starts with 0 to 29 no-ops, or with up to 28 and FIRE where the game has it. Each
    action lasts four frames, of which the last two are merged by their maximum. An observation is the last four
    pictures, 84x84 in grey. Sticky actions are off, and the action set is the game's own.

    A lost life ends an episode of the learner, and the game goes on. ale-py's ``episodic_life`` would start a new game.
    """

    def __init__(self, name: str, count: int, *, width: int = 0, threads: int = 1, pictures: bool = False) -> None:
        options: dict[str, Any] = {
            "num_envs": count, "num_threads": threads, "frameskip": SKIP, "noop_max": 30, "use_fire_reset": True,
            "reward_clipping": False, "autoreset_mode": "SameStep",
        }  # fmt: skip
        game = rom_of(name)
        self.games = AtariVectorEnv(game, stack_num=STACK, **options)
        # a twin with the same seed and actions plays the same games, in a person's view
        colours: dict[str, Any] = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}
        self.twin = AtariVectorEnv(game, **options, **colours) if pictures else None
        assert isinstance(self.games.single_action_space, Discrete)
        self.count = count
        self.actions: Actions = Choice(int(self.games.single_action_space.n))
        self.shape: tuple[int, ...] = (STACK, 84, 84)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)

    def reset(self, seed: int) -> NDArray[Any]:
        seen, info = self.games.reset(seed=seed)
        self.lives = info["lives"]
        self.age = np.full(self.count, STACK)  # steps since a life began; STACK where no frame must be zeroed
        if self.twin is not None:
            self.colours = self.twin.reset(seed=seed)[0]
        return np.array(seen)

    def step(self, actions: NDArray[Any]) -> Step:
        seen, reward, terminated, truncated, info = self.games.step(actions)
        if self.twin is not None:
            self.colours = self.twin.step(actions)[0]
        over = terminated | truncated
        lost = (info["lives"] < self.lives) & ~over
        self.lives = info["lives"]
        cut = truncated & ~terminated
        seen = self._without_earlier_lives(np.array(seen), lost, over)
        return Step(seen, reward.astype(np.float32), over | lost, over, cut, info["final_obs"] if cut.any() else seen)

    def _without_earlier_lives(self, seen: NDArray[Any], lost: Flags, over: Flags) -> NDArray[Any]:
        """Observations with zeros in place of frames from before the episode."""
        self.age += 1
        self.age[lost], self.age[over] = 1, STACK
        for row in np.flatnonzero(self.age < STACK):
            seen[row, : STACK - self.age[row]] = 0
        return seen

    def picture(self) -> NDArray[np.uint8]:
        frame: NDArray[np.uint8] = self.colours[0, -1]
        return frame

    def close(self) -> None:
        self.games.close()
        if self.twin is not None:
            self.twin.close()


def rom_of(name: str) -> str:
    """ale-py's name of a game: kung_fu_master for ``ALE/KungFuMaster-v5``."""
    known = {rom.replace("_", ""): rom for rom in roms.get_all_rom_ids()}
    found = re.fullmatch(r"ALE/(\w+)-v5", name)
    rom = known.get(found[1].lower()) if found else None
    if rom is None:
        raise ValueError(f"there is no game {name!r}; write its name like ALE/SpaceInvaders-v5")
    return rom
