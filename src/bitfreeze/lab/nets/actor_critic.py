"""Networks for reinforcement learning: a backbone that all tasks share, and an actor and a critic for each task."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor, nn

from ..precision import in_full
from .mlp import Widths, require_widths
from .multihead import MultiHead


class ActorCritic(MultiHead):
    """``net(x, task)`` returns the scores of the task's actions, ``net.act(x, task)`` also the value of each state."""

    def __init__(self, backbone: nn.Module, features: int, actions: Sequence[int]) -> None:
        super().__init__(backbone, features, actions)
        self.critics = nn.ModuleList(nn.Linear(features, 1) for _ in actions)
        _start(self.backbone, sqrt(2))
        _start(self.heads, 0.01)  # so that all actions are equally likely at first
        _start(self.critics, 1.0)

    def of_task(self, task: int) -> list[nn.Parameter]:
        return [*super().of_task(task), *self.critics[task].parameters()]

    def act(self, x: Tensor, task: int) -> tuple[Tensor, Tensor]:
        """Scores of the actions and the value of each state, from one pass through the backbone."""
        features = self.features(x, task)
        return self.scores(features, task), in_full(self.critics[task], features).squeeze(1)


class Pixels(nn.Module):
    """Maps uint8 to [0, 1]. Pictures are kept as bytes until a network sees them.

    Channels come last in memory, because convolutions on a CPU are faster that way. Weights keep their layout.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32, memory_format=torch.channels_last).div_(255)


def convolutional(shape: Sequence[int], actions: Sequence[int], channels: Sequence[int], width: int) -> ActorCritic:
    """8x8 with stride 4, 4x4 with stride 2 and 3x3 convolutions, then one linear layer, with ReLU throughout."""
    if len(shape) != 3 or min(shape[1:]) < 36:
        raise ValueError(
            f"observations must be pictures of at least 36x36, got shape {list(shape)}; for vectors use "
            "network.kind=policy_mlp"
        )
    one, two, three = channels
    layers: list[nn.Module] = [Pixels()]
    for before, after, kernel, stride in ((shape[0], one, 8, 4), (one, two, 4, 2), (two, three, 3, 1)):
        layers += [nn.Conv2d(before, after, kernel, stride), nn.ReLU()]
    layers += [nn.Flatten()]
    with torch.no_grad():
        features = nn.Sequential(*layers)(torch.zeros(1, *shape, dtype=torch.uint8)).shape[1]
    layers += [nn.Linear(features, width), nn.ReLU()]
    return ActorCritic(nn.Sequential(*layers), width, actions)


def paper(shape: Sequence[int], actions: Sequence[int]) -> ActorCritic:
    return convolutional(shape, actions, (32, 64, 128), 1024)


def nature(shape: Sequence[int], actions: Sequence[int]) -> ActorCritic:
    return convolutional(shape, actions, (32, 64, 64), 512)


def small(shape: Sequence[int], actions: Sequence[int]) -> ActorCritic:
    return convolutional(shape, actions, (16, 32, 32), 256)


def policy_mlp(shape: Sequence[int], actions: Sequence[int], hidden: Widths = (64, 64)) -> ActorCritic:
    """Linear layers with tanh, for observations that are vectors."""
    require_widths(hidden)
    if not hidden:
        raise ValueError("network.hidden must name at least one width, got []")
    if len(shape) != 1:
        raise ValueError(
            f"observations must be vectors, got shape {list(shape)}; use network.kind=paper, nature or small"
        )
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise([*shape, *hidden]):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return ActorCritic(nn.Sequential(*layers), hidden[-1], actions)


def _start(part: nn.Module, gain: float) -> None:
    """Set orthogonal weights, and biases of 0."""
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(module.weight, gain)
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
