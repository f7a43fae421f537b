"""The likelihood of real targets."""

from math import prod
from numbers import Real

import torch
from torch import Tensor

from .likelihood import Likelihood
from .rows import column, fitted, masked, require_mask, require_sample_axis, sum_per_sample


class Gaussian(Likelihood):
    """Independent real targets, normally distributed, one or several for each sample.

    ``log_prob`` leaves out the constant -log(2 pi) / 2 of each target: it has no gradient.

    Args:
        mean: ``[n]`` or ``[n, ...]``.
        scale: the standard deviation, a number or a tensor that expands to the shape of ``mean``. It may be learned.
        mask: true where a target counts, in the shape of ``mean``. By default all targets count.

    Raises:
        ValueError: ``mean`` has no sample axis, ``mask`` has another shape, or ``scale`` is not above 0.

    Example:
        >>> output = Gaussian(torch.tensor([0.0, 1.0]), scale=2.0)
        >>> output.log_prob(torch.tensor([0.0, 3.0]))
        tensor([-0.6931, -1.1931])
    """

    def __init__(self, mean: Tensor, scale: float | Tensor = 1.0, mask: Tensor | None = None) -> None:
        require_sample_axis(mean)
        require_mask(mask, mean.shape)
        if not isinstance(scale, Tensor) and not (isinstance(scale, Real) and scale > 0):
            raise ValueError(f"scale must be a number above 0, or a tensor of them, got {scale!r}")
        self.mean = mean
        self.scale = torch.as_tensor(scale, dtype=mean.dtype, device=mean.device).expand_as(mean)
        self.mask = mask
        self.rows = mean.shape[0]
        self.noise_shape = mean.shape
        self.outputs = prod(mean.shape[1:])
        self.support_size = self.outputs * (2 if self.scale.requires_grad else 1)

    def sample(self, noise: Tensor) -> Tensor:
        # The noise can be 0, where the normal quantile is -inf.
        normal: Tensor = torch.special.ndtri(noise.to(self.mean.device).clamp(min=2.0**-54))
        return (self.mean.detach() + self.scale.detach() * normal).to(self.mean.dtype)

    def log_prob(self, labels: Tensor) -> Tensor:
        targets = fitted(labels, self.mean)
        each: Tensor = -0.5 * ((targets - self.mean) / self.scale).square() - self.scale.log()
        return sum_per_sample(masked(each, self.mask))

    def unlikely(self) -> Tensor:
        return self.mean.detach() + 2 * self.scale.detach()

    def support(self, k: int) -> Tensor:
        """mu / sigma for each mean, then sqrt(2) log sigma for each standard deviation that is learned."""
        output = k % self.outputs
        sigma = column(self.scale, output)
        mask = None if self.mask is None else column(self.mask, output)
        score = column(self.mean, output) / sigma.detach() if k < self.outputs else sigma.log() * 2**0.5
        return masked(score, mask)
