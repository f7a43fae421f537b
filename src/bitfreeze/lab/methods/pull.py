"""A quadratic pull towards earlier weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Named = dict[str, Tensor]  # a tensor for each parameter, under its name


def pull(parameters: Sequence[Tensor], anchors: Sequence[Tensor], weights: Sequence[Tensor] | None = None) -> Tensor:
    """1/2 sum_i w_i (theta_i - anchor_i)^2 over all entries of all parameters. Without ``weights`` w = 1."""
    value: Tensor = _Pull.apply(anchors, weights, *parameters)  # type: ignore[no-untyped-call]
    return value


class _Pull(torch.autograd.Function):
    """Computes value and gradient together. Every step goes over all parameters and is bound by memory, and autograd
    alone would go over memory twice as often."""

    @staticmethod
    def forward(ctx: Any, anchors: Sequence[Tensor], weights: Sequence[Tensor] | None, *parameters: Tensor) -> Tensor:
        apart = torch._foreach_sub(parameters, list(anchors))
        slope = apart if weights is None else torch._foreach_mul(apart, list(weights))
        ctx.save_for_backward(*slope)
        return torch.stack([torch.dot(a.flatten(), s.flatten()) for a, s in zip(apart, slope, strict=True)]).sum() / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Any, ...]:
        slope = ctx.saved_tensors
        torch._foreach_mul_(slope, outer)  # in place: autograd raises when a graph is walked twice
        return None, None, *slope


def nbytes(*kept: Named) -> int:
    """Memory of all these tensors, in bytes."""
    return sum(value.nbytes for named in kept for value in named.values())
