"""The interface of a likelihood."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class Likelihood(ABC):
    """p(y|x) for a batch of samples: the base of a likelihood of your own.

    Attributes:
        rows: number of samples.
        noise_shape: shape of the noise that ``sample`` takes; for a Product a tuple with the shape of each part.
        support_size: number of scores that ``support`` has.

    Example:
        >>> import torch
        >>> from bitfreeze.likelihoods import Categorical, Likelihood
        >>> isinstance(Categorical(torch.zeros(1, 2)), Likelihood)
        True
    """

    rows: int
    noise_shape: Any
    support_size: int

    @abstractmethod
    def sample(self, noise: Any) -> Any:
        """Draw labels from the model.

        Args:
            noise: uniform numbers on [0, 1) of the shape ``noise_shape``.

        Returns:
            Labels, as ``log_prob`` takes them.
        """

    @abstractmethod
    def log_prob(self, labels: Any) -> Tensor:
        """Compute log p(y|x), with gradients to the network.

        Args:
            labels: labels of all samples.

        Returns:
            One number a sample.
        """

    def require_labels(self, labels: Any) -> None:  # noqa: B027 - most likelihoods take any label
        """Refuse labels that this likelihood cannot have.

        Args:
            labels: labels of all samples.

        Raises:
            ValueError: a label is impossible.
        """

    def predictions(self, rows: int) -> int:
        """Number of predicted positions in the first samples. A sample without positions counts as one.

        Args:
            rows: number of samples.

        Returns:
            The number of positions that count.
        """
        return rows

    def correct(self, labels: Any, rows: int) -> tuple[int, int, float] | None:
        """Count the positions of the first samples where the likeliest class is the label.

        Args:
            labels: labels of all samples.
            rows: number of samples.

        Returns:
            Correct positions, positions that count, and how many of them a guess gets right on average; None where
            there are no classes, or labels of another shape.
        """
        return None

    @abstractmethod
    def unlikely(self) -> Any:
        """Labels that the model does not expect: their gradients do not vanish, however sure the model is."""

    @abstractmethod
    def support(self, k: int) -> Tensor:
        """Compute a score whose squared gradient, summed over k, is the exact Fisher.

        Args:
            k: number of the score, below ``support_size``.

        Returns:
            One number a sample.
        """
