"""Whole games, played by an agent that does not learn from them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..methods import Method
from ..streams import Task
from .environments import World

Choose = Callable[[NDArray[Any]], NDArray[np.int64]]  # from what is seen to actions


def game_scores(world: World, choose: Choose, games: int, limit: int, seed: int) -> list[float]:
    """The raw scores of this many games, stopped after ``limit`` steps.

    Each copy plays one game: were those counted that end first, short games would be counted more often.
    """
    environments = world.make(games, threads=torch.get_num_threads())
    seen = environments.reset(seed)
    scores, playing = np.zeros(games), np.ones(games, dtype=np.bool_)
    actions = np.zeros(games, dtype=np.int64)
    for _ in range(limit):
        actions[playing] = choose(seen[playing])
        step = environments.step(actions)
        scores[playing] += step.reward[playing]
        playing &= ~step.over
        seen = step.seen
        if not playing.any():
            break
    environments.close()
    return [float(score) for score in scores]


def by_policy(method: Method, task: Task, greedy: bool, seed: int) -> Choose:
    """The likeliest action, or one drawn."""
    random = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def choose(seen: NDArray[Any]) -> NDArray[np.int64]:
        logits = method.logits(torch.from_numpy(seen), task)
        chosen: Tensor = logits.argmax(1) if greedy else torch.multinomial(logits.softmax(1), 1, generator=random)[:, 0]
        return chosen.numpy()

    return choose


def at_random(actions: int, seed: int) -> Choose:
    """Any action, each as likely: what learning is measured against."""
    random = np.random.default_rng(seed)
    return lambda seen: random.integers(actions, size=len(seen))
