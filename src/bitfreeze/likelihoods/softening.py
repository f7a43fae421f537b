"""Likelihoods at a higher temperature, which see what a network that is sure of its answers would lose."""

from typing import Any

from torch import Tensor

from .bernoulli import Bernoulli
from .categorical import Categorical
from .likelihood import Likelihood
from .product import Product


class Softened(Likelihood):
    """A likelihood at a higher temperature, with gradients scaled back by it."""

    def __init__(self, inner: Likelihood, temperature: float) -> None:
        self.inner, self.temperature = inner, temperature
        self.rows, self.noise_shape, self.support_size = inner.rows, inner.noise_shape, inner.support_size

    def sample(self, noise: Any) -> Any:
        return self.inner.sample(noise)

    def log_prob(self, labels: Any) -> Tensor:
        return self.temperature * self.inner.log_prob(labels)

    def require_labels(self, labels: Any) -> None:
        self.inner.require_labels(labels)

    def predictions(self, rows: int) -> int:
        return self.inner.predictions(rows)

    def correct(self, labels: Any, rows: int) -> tuple[int, int, float] | None:
        return self.inner.correct(labels, rows)

    def unlikely(self) -> Any:
        return self.inner.unlikely()

    def support(self, k: int) -> Tensor:
        return self.temperature * self.inner.support(k)


def soften(likelihood: Likelihood, temperature: float) -> Likelihood:
    """The likelihood with logits divided by a temperature. Gradients with respect to the logits keep their scale.

    A network that is sure of its answers has a Fisher of almost 0, however much a larger change of its logits would
    cost. Softened probabilities see that cost. Outputs without logits stay as they are.
    """
    if temperature == 1:
        return likelihood
    if isinstance(likelihood, Product):
        return Product([soften(part, temperature) for part in likelihood.parts])
    if isinstance(likelihood, Categorical):
        return Softened(Categorical(likelihood.log_p / temperature, likelihood.mask), temperature)
    if isinstance(likelihood, Bernoulli):
        return Softened(Bernoulli(likelihood.logits / temperature, likelihood.mask), temperature)
    return likelihood
