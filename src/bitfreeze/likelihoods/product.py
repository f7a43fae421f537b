"""The likelihood of several outputs at once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .likelihood import Likelihood


class Product(Likelihood):
    """Several independent outputs of one network. Their log-probabilities add.

    Labels are a tuple or list with the labels of each part.

    Args:
        parts: one likelihood for each output, all of the same samples.

    Raises:
        ValueError: there are no parts, or their numbers of samples differ.

    Example:
        >>> from bitfreeze.likelihoods import Bernoulli, Gaussian
        >>> output = Product([Bernoulli(torch.zeros(2)), Gaussian(torch.zeros(2))])
        >>> output.log_prob((torch.tensor([1, 0]), torch.tensor([0.0, 1.0])))
        tensor([-0.6931, -1.1931])
    """

    def __init__(self, parts: Sequence[Likelihood]) -> None:
        samples = [part.rows for part in parts]
        if len(set(samples)) != 1:
            raise ValueError(f"parts must be at least one likelihood, all of the same samples, got {samples} samples")
        self.parts = tuple(parts)
        self.rows = parts[0].rows
        self.noise_shape = tuple(part.noise_shape for part in parts)
        self.support_size = sum(part.support_size for part in parts)

    def sample(self, noise: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(part.sample(u) for part, u in zip(self.parts, noise, strict=True))

    def log_prob(self, labels: Sequence[Any]) -> Tensor:
        self._require_a_label_for_each(labels)
        terms = [part.log_prob(y) for part, y in zip(self.parts, labels, strict=True)]
        return torch.stack(terms).sum(0)

    def require_labels(self, labels: Sequence[Any]) -> None:
        self._require_a_label_for_each(labels)
        for part, y in zip(self.parts, labels, strict=True):
            part.require_labels(y)

    def _require_a_label_for_each(self, labels: Sequence[Any]) -> None:
        if not isinstance(labels, tuple | list) or len(labels) != len(self.parts):
            raise ValueError(f"labels must be a tuple or list of {len(self.parts)} items, one for each likelihood")

    def unlikely(self) -> tuple[Any, ...]:
        return tuple(part.unlikely() for part in self.parts)

    def support(self, k: int) -> Tensor:
        for part in self.parts:
            if k < part.support_size:
                return part.support(k)
            k -= part.support_size
        raise IndexError(k)
