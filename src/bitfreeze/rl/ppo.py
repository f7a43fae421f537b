"""Proximal policy optimisation of one task, from its settings to its gradient, with a method's hooks in it.

Schulman et al., 2017. An update: every copy of the environment is played for ``rollout`` steps with the policy as it
is; advantages follow from the rewards and the critic; then some epochs of minibatches move policy and critic. Tensors
of a rollout are [t, n]: step t, copy n of the environment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam

from ..methods import Method
from ..nets import ActorCritic
from ..options import option
from ..streams import Task, TaskData
from ..training import TrainingDiverged
from .environments import Environments, derived_seed
from .states import States


@dataclass(frozen=True)
class Settings:
    """How each task is trained; the defaults are those of the paper's Atari experiments."""

    steps: int = option(10_000_000, "actions that the agent takes in a task, all copies together")
    copies: int = option(16, "copies of the environment that are played side by side")
    rollout: int = option(125, "steps of each copy between two updates")
    epochs: int = option(4, "times that an update goes over its steps")
    minibatches: int = option(8, "parts of an epoch, an optimizer step each")
    lr: float = option(2.5e-4, "learning rate of Adam at a task's start")
    anneal: bool = option(True, "let it fall to 0 in a line over the task")
    adam_eps: float = option(1e-5, "epsilon of Adam")
    gamma: float = option(0.99, "discount of rewards to come")
    gae_lambda: float = option(0.95, "lambda of generalised advantage estimation")
    clip: float = option(0.1, "how far a probability may move within an update, as a share of what it was")
    clip_value: bool = option(True, "bound the critic's moves by the same number")
    clip_rewards: bool = option(True, "learn from the sign of rewards; scores are never clipped")
    value_weight: float = option(0.5, "weight of the critic's loss, which is half a squared error")
    entropy_weight: float = option(0.01, "weight of the policy's entropy")
    max_grad_norm: float = option(0.5, "largest norm of all gradients together")
    restart: int = option(0, "updates after which all games begin anew, so that a run continues exactly; 0: never")
    states: int = option(1984, "states of the last rollouts that a method is shown at a task's end")
    evaluations: int = option(50, "evaluations in a task before its last, from its start on")
    games: int = option(10, "whole games played for each of them")
    final_games: int = option(20, "whole games played after a task")
    game_steps: int = option(4500, "steps after which such a game is stopped: for Atari five minutes")
    greedy: bool = option(True, "take the likeliest action in evaluation; else draw")

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "copies",
            "rollout",
            "epochs",
            "minibatches",
            "states",
            "games",
            "final_games",
            "game_steps",
        ):
            self._require(name, isinstance(getattr(self, name), int) and getattr(self, name) >= 1, "at least 1")
        for name in ("restart", "evaluations", "value_weight", "entropy_weight"):
            self._require(name, 0 <= getattr(self, name) < inf, "at least 0")
        for name in ("lr", "adam_eps", "clip", "max_grad_norm"):
            self._require(name, 0 < getattr(self, name) < inf, "greater than 0")
        for name in ("gamma", "gae_lambda"):
            self._require(name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        self._require("copies", self.batch > 1, "at least 2 where rollout is 1, for advantages are compared")
        self._require("minibatches", self.minibatches <= self.batch, f"at most {self.batch}, the steps of an update")
        self._require("steps", self.steps >= self.batch, f"at least {self.batch}, the steps of an update")

    def _require(self, name: str, fine: bool, what: str) -> None:
        if not fine:
            raise ValueError(f"training.{name} must be {what}, got {getattr(self, name)}")

    @property
    def batch(self) -> int:
        """Steps of an update."""
        return self.copies * self.rollout

    @property
    def updates(self) -> int:
        """Updates of a task."""
        return self.steps // self.batch

    def lr_at(self, update: int) -> float:
        return self.lr * (1 - update / self.updates) if self.anneal else self.lr


@dataclass(frozen=True)
class Update:
    """What is known after an update."""

    number: int
    steps: int
    lr: float
    loss: float
    entropy: float
    scores: list[float]  # raw scores of the games that ended in its rollout


@dataclass(frozen=True)
class Samples:
    """Steps to learn from, flat or in [t, n]."""

    x: Tensor
    action: Tensor
    log_p: Tensor  # of the action, by the policy that took it
    value: Tensor  # by the critic of that time
    advantage: Tensor

    def rows(self, rows: Tensor) -> "Samples":
        return Samples(*(_rows(getattr(self, name), rows) for name in self.__dataclass_fields__))


class PPO:
    """One task's training, update by update. Its state can be saved wherever ``can_pause``, and taken up again."""

    def __init__(self, method: Method, task: Task, environments: Environments, settings: Settings, seed: int) -> None:
        self.method, self.task, self.environments, self.settings, self.seed = method, task, environments, settings, seed
        self.random = torch.Generator().manual_seed(seed)
        self.done = 0  # updates
        self.states = States.none(environments)
        self.now: np.ndarray | None = None  # what is seen; None before games have begun
        method.begin_task(task, TaskData(self.states, self.states, self.states))
        assert isinstance(method.net, ActorCritic)
        self.net = method.net
        self.optimizer = Adam(method.trained(task), lr=settings.lr, eps=settings.adam_eps, fused=True)
        shape = (settings.rollout, environments.count)
        self.x = _empty_observations(shape, environments)
        self.action = environments.actions.empty(*shape)
        self.log_p, self.value, self.reward, self.alive = (torch.zeros(shape) for _ in range(4))

    def updates(self) -> Iterator[Update]:
        """Train until the task's steps are used up."""
        self.net.train()
        while self.done < self.settings.updates:
            lr = self.settings.lr_at(self.done)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            if self.now is None or (self.settings.restart and self.done % self.settings.restart == 0):
                self._begin_games()
            samples, scores = self.play()
            loss, entropy = self.learn(samples)
            self.done += 1
            self._keep_states(samples)
            yield Update(self.done, self.done * self.settings.batch, lr, loss, entropy, scores)

    @property
    def can_pause(self) -> bool:
        """Whether going on from here is as if nothing had been: the next update begins games anew, or there is none.
        Where games never begin anew, they do so when a run continues."""
        restart = self.settings.restart
        return restart == 0 or self.done % restart == 0 or self.done == self.settings.updates

    def _begin_games(self) -> None:
        self.now = self.environments.reset(derived_seed(self.seed, self.done))
        self.score = np.zeros(self.environments.count)

    # one update

    @torch.no_grad()
    def play(self) -> tuple[Samples, list[float]]:
        """A rollout with the policy as it is, and the scores of the games that ended in it."""
        settings, actions, finished = self.settings, self.environments.actions, []
        for t in range(settings.rollout):
            self.x[t].copy_(torch.from_numpy(self.now))
            outputs, self.value[t] = self.net.act(self.x[t], self.task.index)
            self.action[t] = actions.draw(outputs, self.random)
            self.log_p[t] = actions.log_prob(outputs, self.action[t])
            step = self.environments.step(self.action[t].numpy())
            reward = torch.from_numpy(np.sign(step.reward) if settings.clip_rewards else step.reward)
            if step.cut.any():  # its time was up, but the world went on: the critic says what was still to come
                later = self.net.act(torch.from_numpy(step.last), self.task.index)[1]
                reward = reward + settings.gamma * later * torch.from_numpy(step.cut)
            self.reward[t] = reward
            self.alive[t] = torch.from_numpy(~step.ended)
            self.score += step.reward
            finished += self.score[step.over].tolist()
            self.score[step.over] = 0
            self.now = step.seen
        after = self.net.act(torch.from_numpy(self.now), self.task.index)[1]
        advantage = advantages(self.reward, self.value, after, self.alive, settings.gamma, settings.gae_lambda)
        return Samples(self.x, self.action, self.log_p, self.value, advantage), finished

    def learn(self, samples: Samples) -> tuple[float, float]:
        """Move policy and critic; returns the mean loss and the mean entropy."""
        flat = Samples(*(getattr(samples, name).flatten(0, 1) for name in samples.__dataclass_fields__))
        spread = (flat.advantage - flat.advantage.mean()) / (flat.advantage.std() + 1e-5)
        target = flat.advantage + flat.value
        total, actions = torch.zeros(2), self.environments.actions
        for _ in range(self.settings.epochs):
            order = torch.randperm(len(target), generator=self.random)
            for rows in order.tensor_split(self.settings.minibatches):
                part = flat.rows(rows)
                outputs, value = self.net.act(part.x, self.task.index)
                log_p, entropy = actions.log_prob(outputs, part.action), actions.entropy(outputs).mean()
                loss = ppo_loss(log_p, entropy, value, part, spread[rows], target[rows], self.settings)
                self.method.update(loss, self.task, [self.optimizer], clip=self.settings.max_grad_norm)
                total += torch.stack([loss.detach(), entropy.detach()])
        loss_mean, entropy_mean = (total / (self.settings.epochs * self.settings.minibatches)).tolist()
        self._require_finite("the mean loss", loss_mean)
        # no loss has seen where the last step led
        moved = [p.detach().sum() for group in self.optimizer.param_groups for p in group["params"]]
        self._require_finite("the sum of all weights", torch.stack(moved).sum().item())
        return loss_mean, entropy_mean

    def _require_finite(self, what: str, value: float) -> None:
        if not isfinite(value):
            raise TrainingDiverged(
                f"{what} is {value} at task {self.task.index + 1}, update {self.done + 1}: lower the learning rate "
                f"({self.settings.lr:g})"
            )

    def _keep_states(self, samples: Samples) -> None:
        """Of as many last rollouts as hold the states that a method will be shown."""
        if (self.settings.updates - self.done) * self.settings.batch < self.settings.states:
            self.states = self.states.extended(samples.x.flatten(0, 1).contiguous(), samples.action.flatten(0, 1))

    def seen(self) -> TaskData:
        """The states for the end of the task, and the actions taken in them, in a random order."""
        rows = torch.randperm(len(self.states), generator=self.random)[: self.settings.states]
        chosen = self.states.subset(rows)
        return TaskData(chosen, chosen, chosen)

    # being cut off, and going on

    def state_dict(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "optimizer": self.optimizer.state_dict(),
            "random": self.random.get_state(),
            "states": {"x": self.states.x, "y": self.states.y},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.random.set_state(state["random"])
        self.states = States(**state["states"])


def _empty_observations(shape: tuple[int, int], environments: Environments) -> Tensor:
    """Pictures with their channels last in memory, as a network takes them: else every epoch would move them there."""
    kind = torch.from_numpy(np.zeros(1, environments.dtype)).dtype
    if len(environments.shape) != 3:
        return torch.zeros(*shape, *environments.shape, dtype=kind)
    channels, height, width = environments.shape
    return torch.zeros(*shape, height, width, channels, dtype=kind).movedim(-1, 2)


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows], which for bytes takes near twenty times as long as to select what lies in one piece."""
    if x.ndim != 4:
        return x.index_select(0, rows)
    return x.movedim(1, -1).index_select(0, rows).movedim(-1, 1)


def advantages(reward: Tensor, value: Tensor, after: Tensor, alive: Tensor, gamma: float, decay: float) -> Tensor:
    """A_t = delta_t + gamma lambda A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t; nothing comes after an end."""
    result = torch.zeros_like(reward)
    following = torch.zeros_like(after)
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * after * alive[t] - value[t]
        following = delta + gamma * decay * alive[t] * following
        result[t] = following
        after = value[t]
    return result


def ppo_loss(
    log_p: Tensor,
    entropy: Tensor,
    value: Tensor,
    samples: Samples,
    advantage: Tensor,
    target: Tensor,
    settings: Settings,
) -> Tensor:
    """Policy loss + weight * critic's loss - weight * entropy, from what policy and critic say of the samples now;
    ``advantage`` is normalised."""
    ratio = (log_p - samples.log_p).exp()
    bounded = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy = -torch.min(ratio * advantage, bounded * advantage).mean()
    error = (value - target).square()
    if settings.clip_value:
        near = samples.value + (value - samples.value).clamp(-settings.clip, settings.clip)
        error = torch.max(error, (near - target).square())
    return policy + settings.value_weight * 0.5 * error.mean() - settings.entropy_weight * entropy
