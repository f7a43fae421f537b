"""Evaluation: whole games, from which the agent does not learn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..methods import Method
from ..tasks import Task
from .actions import Actions
from .game_spec import GameSpec

Choose = Callable[[NDArray[Any]], NDArray[Any]]  # maps observations to actions


def game_scores(spec: GameSpec, choose: Choose, games: int, limit: int, seed: int) -> list[float]:
    """Raw scores of ``games`` games, each stopped after ``limit`` steps.

    Each copy plays one game. Counting the games that end first would count short games more often.
    """
    environments = spec.make(games, threads=torch.get_num_threads())
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
    """A player that takes the policy's likeliest action (``greedy``), or draws one."""
    random, device = torch.Generator().manual_seed(seed), next(method.net.parameters()).device

    @torch.no_grad()
    def choose(seen: NDArray[Any]) -> NDArray[Any]:
        with method.passes():
            outputs = method.logits(torch.from_numpy(seen).to(device), task).cpu()
        return (actions.likeliest(outputs) if greedy else actions.draw(outputs, random)).numpy()

    return choose


def at_random(actions: Actions, seed: int) -> Choose:
    """A player that draws actions uniformly: the baseline of learning."""
    random = np.random.default_rng(seed)
    return lambda seen: actions.at_random(len(seen), random)
