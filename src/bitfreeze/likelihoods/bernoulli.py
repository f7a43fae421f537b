"""The likelihood of yes/no labels."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from .likelihood import Likelihood
from .rows import column, fitted, masked, require_mask, require_sample_axis, sum_per_sample


class Bernoulli(Likelihood):
    """Independent yes/no labels, one or several for each sample.

    Labels are 0 or 1, in the shape of ``logits``.

    Args:
        logits: ``[n]`` or ``[n, ...]``.
        mask: true where a label counts, in the shape of ``logits``. By default all labels count.

    Raises:
        ValueError: ``logits`` has no sample axis, or ``mask`` has another shape.

    Example:
        >>> output = Bernoulli(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
        >>> output.log_prob(torch.tensor([[1, 0], [1, 1]]))
        tensor([-0.8201, -1.3863])
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        require_sample_axis(logits)
        require_mask(mask, logits.shape)
        self.logits = logits
        self.mask = mask
        self.rows = logits.shape[0]
        self.noise_shape = logits.shape
        self.support_size = prod(logits.shape[1:])

    def sample(self, noise: Tensor) -> Tensor:
        p = torch.sigmoid(self.logits.detach().double())
        return (noise.to(p.device) < p).to(self.logits.dtype)

    def log_prob(self, labels: Tensor) -> Tensor:
        targets = fitted(labels, self.logits)
        each = -F.binary_cross_entropy_with_logits(self.logits, targets, reduction="none")
        return sum_per_sample(masked(each, self.mask))

    def require_labels(self, labels: Tensor) -> None:
        counted = masked(
            fitted(labels.to(self.logits.device), self.logits), self.mask
        )  # what stands at padding is no label
        wrong = counted[(counted != 0) & (counted != 1)]
        if len(wrong):
            raise ValueError(f"labels must be 0 or 1, got {wrong[0].item():g}; give padding a mask")

    def unlikely(self) -> Tensor:
        return (self.logits.detach() < 0).to(self.logits.dtype)

    def support(self, k: int) -> Tensor:
        """sqrt(p (1 - p)) z: the gradient for label y is (y - p) dz, whose mean square is p (1 - p) dz^2."""
        z = column(self.logits, k)
        variance = torch.sigmoid(z.detach()) * torch.sigmoid(-z.detach())  # 1 - p would round to 0 for p near 1
        return masked(variance.sqrt() * z, None if self.mask is None else column(self.mask, k))
