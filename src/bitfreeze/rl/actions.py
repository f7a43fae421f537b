"""What an agent may do: choose among actions, or give numbers. Both are read from the outputs of a task's actor."""

from dataclasses import dataclass
from math import e, log, pi
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..likelihoods import Categorical, Gaussian, Likelihood


class Actions(Protocol):
    """n rows of an actor's outputs say how likely each action is."""

    @property
    def outputs(self) -> int:
        """How many the actor has."""

    def likelihood(self, outputs: Tensor) -> Likelihood:
        """Of the actions: what methods measure the Fisher of."""

    def empty(self, *shape: int) -> Tensor:
        """Room for so many actions."""

    def draw(self, outputs: Tensor, random: torch.Generator) -> Tensor: ...

    def likeliest(self, outputs: Tensor) -> Tensor: ...

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor: ...

    def entropy(self, outputs: Tensor) -> Tensor:
        """Of each row."""

    def at_random(self, count: int, random: np.random.Generator) -> NDArray[Any]:
        """Any action, each as likely."""


@dataclass(frozen=True)
class Choice:
    """One of so many actions, counted from 0."""

    outputs: int

    def likelihood(self, outputs: Tensor) -> Categorical:
        return Categorical(outputs)

    def empty(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64)

    def draw(self, outputs: Tensor, random: torch.Generator) -> Tensor:
        return torch.multinomial(outputs.log_softmax(1).exp(), 1, generator=random).squeeze(1)

    def likeliest(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return outputs.log_softmax(1).gather(1, actions.unsqueeze(1)).squeeze(1)

    def entropy(self, outputs: Tensor) -> Tensor:
        every = outputs.log_softmax(1)
        return -(every.exp() * every).sum(1)

    def at_random(self, count: int, random: np.random.Generator) -> NDArray[Any]:
        return random.integers(self.outputs, size=count)


@dataclass(frozen=True)
class Numbers:
    """So many numbers, from -1 to 1 where the environment bounds them. Each is drawn from a normal distribution: the
    actor gives the means, then the logarithms of the deviations. What is drawn beyond the bounds counts as it was
    drawn, and is clipped by the environment."""

    count: int

    @property
    def outputs(self) -> int:
        return 2 * self.count

    def likelihood(self, outputs: Tensor) -> Gaussian:
        return Gaussian(outputs[:, : self.count], outputs[:, self.count :].clamp(-5, 2).exp())

    def empty(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, self.count)

    def draw(self, outputs: Tensor, random: torch.Generator) -> Tensor:
        found = self.likelihood(outputs)
        return torch.normal(found.mean, found.scale, generator=random)

    def likeliest(self, outputs: Tensor) -> Tensor:
        return self.likelihood(outputs).mean

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return self.likelihood(outputs).log_prob(actions) - 0.5 * log(2 * pi) * self.count

    def entropy(self, outputs: Tensor) -> Tensor:
        return (self.likelihood(outputs).scale.log() + 0.5 * log(2 * pi * e)).sum(1)

    def at_random(self, count: int, random: np.random.Generator) -> NDArray[Any]:
        return random.uniform(-1, 1, (count, self.count)).astype(np.float32)
