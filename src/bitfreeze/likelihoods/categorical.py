"""The likelihood of class scores."""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .likelihood import Likelihood
from .rows import column, require_mask, sum_per_sample


class Categorical(Likelihood):
    """One class out of C for each sample, or for each position of a sample.

    Labels are class numbers from 0. A label below 0 does not count, as is usual for padded targets.

    Args:
        logits: class scores, ``[n, C]`` or ``[n, ..., C]``, with C >= 2.
        mask: ``[n, ...]``, true where a position counts, false at padding. By default all positions count.

    Raises:
        ValueError: ``logits`` or ``mask`` has another shape.

    Example:
        >>> output = Categorical(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
        >>> output.log_prob(torch.tensor([0, 1]))
        tensor([-0.1269, -0.6931])
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        if logits.ndim < 2 or logits.shape[-1] < 2:
            raise ValueError(
                f"class logits must have the shape [n, C] or [n, positions, C] with C >= 2, got {list(logits.shape)}; "
                "for one yes/no logit return Bernoulli(logits), for a real-valued output Gaussian(mean)"
            )
        require_mask(mask, logits.shape[:-1])
        self.log_p = F.log_softmax(logits, dim=-1)
        self.mask = mask
        self.rows = logits.shape[0]
        self.noise_shape = logits.shape[:-1]
        self.support_size = prod(logits.shape[1:])

    def sample(self, noise: Tensor) -> Tensor:
        """The first class at which the cumulative probability exceeds the noise."""
        below = self.log_p.detach().double().exp().cumsum(-1)
        # Rounding may leave the last entry below 1. The noise is scaled by it, so every draw is a class.
        return (noise.to(below.device).unsqueeze(-1) * below[..., -1:] >= below).sum(-1).clamp_(max=below.shape[-1] - 1)

    def predictions(self, rows: int) -> int:
        return self.log_p[:rows, ..., 0].numel() if self.mask is None else int(self.mask[:rows].sum())

    def correct(self, labels: Any, rows: int) -> tuple[int, int, float] | None:
        if not isinstance(labels, Tensor) or labels.shape != self.log_p.shape[:-1] or labels.is_floating_point():
            return None
        labels = labels[:rows].to(self.log_p.device)
        counts = labels >= 0 if self.mask is None else (labels >= 0) & self.mask[:rows].bool()
        hits = (self.log_p[:rows].argmax(-1) == labels) & counts
        counted = int(counts.sum())
        return int(hits.sum()), counted, counted / self.log_p.shape[-1]

    def log_prob(self, labels: Tensor) -> Tensor:
        if labels.shape != self.log_p.shape[:-1]:
            raise ValueError(
                f"labels must have the shape {list(self.log_p.shape[:-1])}, a class number for each sample and "
                f"position, got {list(labels.shape)}"
            )
        counts = labels >= 0
        if self.mask is not None:
            counts = counts & self.mask.bool()
        chosen = self.log_p.gather(-1, labels.clamp(min=0).long().unsqueeze(-1)).squeeze(-1)
        return sum_per_sample(torch.where(counts, chosen, 0.0))

    def require_labels(self, labels: Tensor) -> None:
        classes = self.log_p.shape[-1]
        if labels.is_floating_point() and (labels != labels.round()).any():
            raise ValueError(f"labels must be class numbers from 0 to {classes - 1}, got real numbers")
        if labels.numel() and int(labels.max()) >= classes:
            raise ValueError(f"labels must be class numbers from 0 to {classes - 1}, got {int(labels.max())}")

    def unlikely(self) -> Tensor:
        log_p = self.log_p.detach()
        return log_p.masked_fill(log_p == -torch.inf, torch.inf).argmin(-1)  # a class of probability 0 has no gradient

    def support(self, k: int) -> Tensor:
        """sqrt(p) log p of one class at one position. Positions are independent, so cross terms vanish."""
        log_p = column(self.log_p, k)
        log_p = torch.where(log_p == -torch.inf, 0.0, log_p)  # a class of probability 0 adds nothing
        weight = (0.5 * column(self.log_p, k).detach()).exp()
        if self.mask is not None:
            weight = weight * column(self.mask, k // self.log_p.shape[-1])
        return weight * log_p
