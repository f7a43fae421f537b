"""Whole games, played by an agent that does not learn from them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..methods import Method
from ..streams import Task
from .actions import Actions
from .environments import World

Choose = Callable[[NDArray[Any]], NDArray[Any]]  # from what is seen to actions


def game_scores(world: World, choose: Choose, games: int, limit: int, seed: int) -> list[float]:
    """The raw scores of this many games, stopped after ``limit`` steps.

    Each copy plays one game: were those counted that end first, short games would be counted more often.
    """
    environments = world.make(games, threads=torch.get_num_threads())
    seen = environments.reset(seed)
    scores, playing = np.zeros(games), np.ones(games, dtype=np.bool_)
    actions = environments.actions.empty(games).numpy()
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


def by_policy(method: Method, task: Task, actions: Actions, greedy: bool, seed: int) -> Choose:
    """The likeliest action, or one drawn."""
    random = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def choose(seen: NDArray[Any]) -> NDArray[Any]:
        outputs = method.logits(torch.from_numpy(seen), task)
        return (actions.likeliest(outputs) if greedy else actions.draw(outputs, random)).numpy()

    return choose


def at_random(actions: Actions, seed: int) -> Choose:
    """Any action, each as likely: what learning is measured against."""
    random = np.random.default_rng(seed)
    return lambda seen: actions.at_random(len(seen), random)
