"""Actions of an agent: a choice among actions, or numbers. Both follow from the outputs of a task's actor."""

from dataclasses import dataclass
from math import e, log, pi
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...likelihoods import Categorical, Gaussian, Likelihood


class Actions(Protocol):
    """A distribution of actions for each of the n rows of an actor's outputs."""

    @property
    def outputs(self) -> int:
        """Number of the actor's outputs."""

    def likelihood(self, outputs: Tensor) -> Likelihood:
        """Distribution of the actions, for the Fisher."""

    def empty(self, *shape: int) -> Tensor:
        """A tensor for actions in this shape."""

    def draw(self, outputs: Tensor, random: torch.Generator) -> Tensor:
        """An action for each row, drawn."""

    def likeliest(self, outputs: Tensor) -> Tensor:
        """The likeliest action for each row."""

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Log-probability of each row's action."""

    def entropy(self, outputs: Tensor) -> Tensor:
        """Entropy of each row."""

    def at_random(self, count: int, random: np.random.Generator) -> NDArray[Any]:
        """``count`` actions, drawn uniformly."""


@dataclass(frozen=True)
class Choice:
    """One of ``outputs`` actions, counted from 0."""

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
    """``count`` numbers, each with a normal distribution. The actor gives the means, then the logs of the deviations.

    Where the environment has bounds, they lie at -1 and 1 here. The environment clips numbers beyond them, and
    ``log_prob`` takes them as they were drawn.
    """

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
