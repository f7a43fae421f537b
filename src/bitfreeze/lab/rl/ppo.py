"""Proximal policy optimisation (Schulman et al., 2017) of one task, with the hooks of a method.

An update plays every copy of the environment for ``rollout`` steps with the present policy. It computes advantages from
the rewards and the critic, then trains policy and critic for some epochs of minibatches. Tensors of a rollout are
[t, n]: step t, copy n of the environment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ...model.devices import moved
from ..methods import Method, adam
from ..nets import ActorCritic
from ..options import require
from ..precision import PRECISIONS, Precision, passes_in
from ..tasks import Task, TaskData, require_finite
from .environments import Environments, derived_seed
from .states import States


@dataclass(frozen=True)
class Settings:
    """Settings of the training of each task. The defaults are those of the paper's Atari experiments."""

    steps: Annotated[int, "actions that the agent takes in a task, all copies together"] = 10_000_000
    copies: Annotated[int, "copies of the environment that are played side by side"] = 16
    rollout: Annotated[int, "steps of each copy between two updates"] = 125
    epochs: Annotated[int, "times that an update goes over its steps"] = 4
    minibatches: Annotated[int, "parts of an epoch, an optimizer step each"] = 8
    lr: Annotated[float, "learning rate of Adam at a task's start"] = 2.5e-4
    anneal: Annotated[bool, "lower the learning rate linearly to 0 over the task"] = True
    adam_eps: Annotated[float, "epsilon of Adam"] = 1e-5
    gamma: Annotated[float, "discount of future rewards"] = 0.99
    gae_lambda: Annotated[float, "lambda of generalised advantage estimation"] = 0.95
    clip: Annotated[float, "largest relative change of an action's probability in an update"] = 0.1
    clip_value: Annotated[bool, "clip the critic's changes too"] = True
    clip_rewards: Annotated[bool, "learn from the sign of rewards; scores are never clipped"] = True
    value_weight: Annotated[float, "weight of the critic's loss, which is half a squared error"] = 0.5
    entropy_weight: Annotated[float, "weight of the policy's entropy"] = 0.01
    max_grad_norm: Annotated[float, "largest norm of all gradients together"] = 0.5
    restart: Annotated[int, "updates after which all games restart, so that a run continues exactly; 0: never"] = 0
    states: Annotated[int, "states of the last rollouts that a method is shown at a task's end"] = 1984
    evaluations: Annotated[int, "evaluations in a task, from its start on, besides the one at its end"] = 50
    games: Annotated[int, "whole games played in each evaluation"] = 10
    final_games: Annotated[int, "whole games played in the evaluation at a task's end"] = 20
    game_steps: Annotated[int, "steps after which a game of an evaluation is stopped; for Atari five minutes"] = 4500
    greedy: Annotated[bool, "take the likeliest action in evaluation; else draw"] = True
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        played = ("steps", "copies", "rollout", "states", "games", "final_games", "game_steps")
        counts = (*played, "epochs", "minibatches")
        require("training", self, counts, lambda n: isinstance(n, int) and n >= 1, "a whole number of at least 1")
        weights = ("restart", "evaluations", "value_weight", "entropy_weight")
        require("training", self, weights, lambda x: 0 <= x < inf, "finite and at least 0")
        rates = ("lr", "adam_eps", "clip", "max_grad_norm")
        require("training", self, rates, lambda x: 0 < x < inf, "finite and greater than 0")
        require("training", self, ("gamma", "gae_lambda"), lambda x: 0 <= x <= 1, "from 0 to 1")
        require("training", self, ["precision"], PRECISIONS.__contains__, "float32 or bf16")
        update = f"{self.batch}, the steps of an update"
        more = "at least 2 where rollout is 1, because advantages are compared"
        require("training", self, ["copies"], lambda _: self.batch > 1, more)
        require("training", self, ["minibatches"], lambda n: n <= self.batch, f"at most {update}")
        require("training", self, ["steps"], lambda n: n >= self.batch, f"at least {update}")

    @property
    def batch(self) -> int:
        """Number of steps in an update."""
        return self.copies * self.rollout

    @property
    def updates(self) -> int:
        """Number of updates in a task."""
        return self.steps // self.batch

    def lr_at(self, update: int) -> float:
        """Learning rate of this update, counted from 0."""
        return self.lr * (1 - update / self.updates) if self.anneal else self.lr


@dataclass(frozen=True)
class Update:
    """The figures of an update."""

    number: int
    steps: int
    lr: float
    loss: float
    entropy: float
    scores: list[float]  # raw scores of the games that ended in the rollout


@dataclass(frozen=True)
class Samples:
    """Steps to learn from, in [t, n] or flat."""

    x: Tensor
    action: Tensor
    log_p: Tensor  # log-probability of the action under the policy that took it
    value: Tensor  # the critic's value at that time
    advantage: Tensor

    def rows(self, rows: Tensor) -> "Samples":
        return Samples(*(_rows(getattr(self, name), rows) for name in self.__dataclass_fields__))


class PPO:
    """One task's training, update by update. Its state can be saved and restored where ``can_pause`` is true."""

    def __init__(self, method: Method, task: Task, environments: Environments, settings: Settings, seed: int) -> None:
        self.method, self.task, self.environments, self.settings, self.seed = method, task, environments, settings, seed
        self.random = torch.Generator().manual_seed(seed)
        self.done = 0  # number of updates
        self.states = States.none(environments, next(method.net.parameters()).device)
        self.now: np.ndarray | None = None  # observations; None before games have begun
        method.passes = passes_in(settings.precision, next(method.net.parameters()).device)
        method.begin_task(task, TaskData(self.states, self.states, self.states))
        assert isinstance(method.net, ActorCritic)
        self.net = method.net
        self.device = next(method.net.parameters()).device
        self.optimizer = adam(method.trained(task), lr=settings.lr, eps=settings.adam_eps)
        shape = (settings.rollout, environments.count)
        self.x = _empty_observations(shape, environments, self.device)
        self.action = environments.actions.empty(*shape).to(self.device)
        self.log_p, self.value = (torch.zeros(shape, device=self.device) for _ in range(2))
        self.reward, self.alive = (torch.zeros(shape) for _ in range(2))  # on the host, where the games are

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
        """Whether a run may be saved here. It then continues exactly, because the next update begins new games or the
        task is done. Where ``restart`` is 0, it is always true, and a run that continues begins new games."""
        restart = self.settings.restart
        return restart == 0 or self.done % restart == 0 or self.done == self.settings.updates

    def _begin_games(self) -> None:
        self.now = self.environments.reset(derived_seed(self.seed, self.done))
        self.score = np.zeros(self.environments.count)

    def _act(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with self.method.passes():
            return self.net.act(x, self.task.index)

    # one update

    @torch.no_grad()
    def play(self) -> tuple[Samples, list[float]]:
        """Play a rollout with the present policy. Returns its steps, and the scores of the games that ended in it."""
        settings, actions, finished = self.settings, self.environments.actions, []
        for t in range(settings.rollout):
            self.x[t].copy_(torch.from_numpy(self.now))
            outputs, self.value[t] = self._act(self.x[t])
            action = actions.draw(outputs.cpu(), self.random)  # there the same numbers are drawn for every device
            self.action[t] = action
            self.log_p[t] = actions.log_prob(outputs, self.action[t])
            step = self.environments.step(action.numpy())
            reward = torch.from_numpy(np.sign(step.reward) if settings.clip_rewards else step.reward)
            if step.cut.any():  # the game went on after its time was up: the critic estimates the rest
                later = self._act(torch.from_numpy(step.last).to(self.device))[1]
                reward = reward + settings.gamma * later.cpu() * torch.from_numpy(step.cut)
            self.reward[t] = reward
            self.alive[t] = torch.from_numpy(~step.ended)
            self.score += step.reward
            finished += self.score[step.over].tolist()
            self.score[step.over] = 0
            self.now = step.seen
        after = self._act(torch.from_numpy(self.now).to(self.device))[1]
        value = self.value.cpu()  # many small steps, which a GPU would not take faster
        advantage = advantages(self.reward, value, after.cpu(), self.alive, settings.gamma, settings.gae_lambda)
        return Samples(self.x, self.action, self.log_p, self.value, advantage.to(self.device)), finished

    def learn(self, samples: Samples) -> tuple[float, float]:
        """Train policy and critic on a rollout. Returns the mean loss and the mean entropy."""
        flat = Samples(*(getattr(samples, name).flatten(0, 1) for name in samples.__dataclass_fields__))
        spread = (flat.advantage - flat.advantage.mean()) / (flat.advantage.std() + 1e-5)
        target = flat.advantage + flat.value
        total, actions = torch.zeros(2, device=self.device), self.environments.actions
        for _ in range(self.settings.epochs):
            order = torch.randperm(len(target), generator=self.random).to(self.device)
            for rows in order.tensor_split(self.settings.minibatches):
                part = flat.rows(rows)
                outputs, value = self._act(part.x)
                log_p, entropy = actions.log_prob(outputs, part.action), actions.entropy(outputs).mean()
                loss = ppo_loss(log_p, entropy, value, part, spread[rows], target[rows], self.settings)
                self.method.update(loss, self.task, [self.optimizer], clip=self.settings.max_grad_norm)
                total += torch.stack([loss.detach(), entropy.detach()])
        loss_mean, entropy_mean = (total / (self.settings.epochs * self.settings.minibatches)).tolist()
        # the weights too, because no loss was computed after the last step
        moved = [p.detach().sum() for group in self.optimizer.param_groups for p in group["params"]]
        place = f"task {self.task.index + 1}, update {self.done + 1}"
        require_finite("the mean loss", loss_mean, place, self.settings.lr)
        require_finite("the sum of all weights", torch.stack(moved).sum().item(), place, self.settings.lr)
        return loss_mean, entropy_mean

    def _keep_states(self, samples: Samples) -> None:
        """Keep the states of the last rollouts, as many rollouts as hold ``settings.states`` states."""
        if (self.settings.updates - self.done) * self.settings.batch < self.settings.states:
            self.states = self.states.extended(samples.x.flatten(0, 1).contiguous(), samples.action.flatten(0, 1))

    def seen(self) -> TaskData:
        """States for ``method.end_task`` and the actions taken in them, in random order."""
        rows = torch.randperm(len(self.states), generator=self.random)[: self.settings.states]
        chosen = self.states.subset(rows)
        return TaskData(chosen, chosen, chosen)

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
        self.states = States(**moved(state["states"], self.device))


def _empty_observations(shape: tuple[int, int], environments: Environments, device: torch.device) -> Tensor:
    """Room for observations. Pictures have their channels last in memory, else every epoch would move them there."""
    kind = torch.from_numpy(np.zeros(1, environments.dtype)).dtype
    if len(environments.shape) != 3:
        return torch.zeros(*shape, *environments.shape, dtype=kind, device=device)
    channels, height, width = environments.shape
    return torch.zeros(*shape, height, width, channels, dtype=kind, device=device).movedim(-1, 2)


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows] by ``index_select`` on contiguous memory, which for bytes is nearly twenty times as fast."""
    if x.ndim != 4:
        return x.index_select(0, rows)
    return x.movedim(1, -1).index_select(0, rows).movedim(-1, 1)


def advantages(reward: Tensor, value: Tensor, after: Tensor, alive: Tensor, gamma: float, decay: float) -> Tensor:
    """A_t = delta_t + gamma lambda A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t. An end cuts both sums."""
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
    """Policy loss + value_weight * critic's loss - entropy_weight * entropy, where ``advantage`` is normalised.

    ``log_p``, ``entropy`` and ``value`` are those of the present policy and critic.
    """
    ratio = (log_p - samples.log_p).exp()
    bounded = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy = -torch.min(ratio * advantage, bounded * advantage).mean()
    error = (value - target).square()
    if settings.clip_value:
        near = samples.value + (value - samples.value).clamp(-settings.clip, settings.clip)
        error = torch.max(error, (near - target).square())
    return policy + settings.value_weight * 0.5 * error.mean() - settings.entropy_weight * entropy
