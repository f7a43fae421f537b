"""Gradients G of [W b] without what lies along a basis M of a layer's inputs: G (I - M diag(shares) M^T).

The gradient of a linear layer is a sum over the rows of a batch, G = d^T x for inputs x and gradients d of outputs. Its
inputs are projected in place of G, because a batch has far fewer rows than a wide layer has outputs.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...fisher.factors import joined_parameters, split_joined
from .input_space import Layer

Held = tuple[Tensor, Tensor | None]  # M [width, k], and the share of each of its directions; none means 1


def without(rows: Tensor, held: Held) -> Tensor:
    """x (I - M diag(shares) M^T) of each row x."""
    basis, shares = held
    along = rows @ basis
    return rows - (along if shares is None else along * shares) @ basis.T


def project_(layer: Layer, held: Held) -> None:
    """Project the gradient of any layer where it stands."""
    gradients = [layer.get_parameter(name).grad for name in joined_parameters(layer)]
    present = [gradient.reshape(len(gradient), -1) for gradient in gradients if gradient is not None]
    if len(present) < len(gradients):  # the layer had no part in this step
        return
    projected = without(torch.cat(present, 1), held)
    for gradient, part in zip(gradients, split_joined(layer, projected).values(), strict=True):
        if gradient is not None:
            gradient.copy_(part)


def learn_projected(layer: nn.Linear, held: Callable[[], Held | None]) -> None:
    """Let backward passes through a linear layer give its weights projected gradients, while ``held`` is not None."""

    def detour(_: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        now = held() if torch.is_grad_enabled() else None
        if now is None:
            return output
        seen: Tensor = _ProjectedLinear.apply(args[0], layer.weight, layer.bias, *now)  # type: ignore[no-untyped-call]
        return seen

    layer.register_forward_hook(detour)


class _ProjectedLinear(torch.autograd.Function):
    """x W^T + b, whose gradients of W and b are projected. That of x is not."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, basis: Tensor, shares: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight, basis, shares)
        ctx.has_bias = bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, basis, shares = ctx.saved_tensors
        rows = x.reshape(-1, x.shape[-1]).to(basis)
        if ctx.has_bias:
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        # in the precision of the basis, because a product rounded to bfloat16 would leave the space that is free
        with torch.autocast(basis.device.type, enabled=False):
            joined = outer.reshape(-1, outer.shape[-1]).to(basis).T @ without(rows, (basis, shares))
        of_x = outer @ weight.to(outer.dtype) if ctx.needs_input_grad[0] else None
        of_bias = joined[:, -1] if ctx.has_bias else None
        return of_x, joined[:, : x.shape[-1]], of_bias, None, None
