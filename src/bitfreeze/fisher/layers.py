"""Exact rules for the layers of torch.nn. Index letters: see registry.py.

The gradient of a sample is first summed over positions, then squared. The other order gives another, wrong quantity.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..model.layers import CONV1D
from .depthwise import add_depthwise
from .memory import row_chunks
from .patches import pad_input, patches
from .registry import CONVOLUTIONS, register_rule

DEPTHWISE_POSITIONS = 100  # up to which depthwise convolutions work on shifted inputs, without patches
CACHE = 4 * 2**20  # bytes of per-sample gradients that stay in the processor's cache


_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _add_squares(total: Tensor, rows: int, floats_per_row: int, gradients: Callable[[slice], Tensor]) -> None:
    """total += sum over n of gradients^2, a few samples at a time. ``gradients(rows)`` returns [n, *total.shape]."""
    flat = total.view(-1)
    for chunk in row_chunks(rows, floats_per_row * total.element_size(), CACHE):
        per_sample = gradients(chunk).reshape(chunk.stop - chunk.start, -1)
        for row in per_sample:
            flat.addcmul_(row, row)


# Linear: z_no = sum_i W_oi a_ni + b_o, at each position l if there are several


@register_rule(nn.Linear, parameter="weight")
def linear_weight(total: Tensor, layer: nn.Module, a: Tensor, delta: Tensor) -> None:
    """With one position, sum_n (delta_no a_ni)^2 is a matrix product of squares; else G_noi = sum_l delta_nlo a_nli."""
    if a.ndim == 2:
        total.addmm_(delta.square().T, a.square())
        return
    a, delta = a.flatten(1, -2), delta.flatten(1, -2)
    _add_squares(total, len(a), total.numel(), lambda rows: delta[rows].mT @ a[rows])


@register_rule(CONV1D, parameter="weight")
def conv1d_weight(total: Tensor, layer: nn.Module, a: Tensor, delta: Tensor) -> None:
    """Linear with a weight [i, o], so a and delta change places."""
    linear_weight(total, layer, delta, a)


@register_rule(nn.Linear, CONV1D, parameter="bias")
def linear_bias(total: Tensor, layer: nn.Module, a: Tensor, delta: Tensor) -> None:
    total += delta.flatten(1, -2).sum(1).square().sum(0) if delta.ndim > 2 else delta.square().sum(0)


# Convolutions are Linear layers with positions: the input of a position is the patch that it sees


@register_rule(*CONVOLUTIONS, parameter="weight")
def conv_weight(total: Tensor, layer: Any, a: Tensor, delta: Tensor) -> None:
    """G_ngok = sum_l delta_ngol patch_ngkl. With one position it has the form of Linear."""
    groups, positions = layer.groups, delta.shape[2:]
    if groups == layer.in_channels == layer.out_channels and 1 < prod(positions) <= DEPTHWISE_POSITIONS:
        add_depthwise(total, layer, a, delta)
        return
    delta = delta.reshape(len(delta), groups, layer.out_channels // groups, -1)

    def inputs(rows: slice) -> Tensor:
        padded = pad_input(layer, a[rows])
        return patches(padded, layer.kernel_size, layer.stride, layer.dilation, positions, groups)

    _add_products(total, delta, inputs, floats=prod(positions) * layer.in_channels * prod(layer.kernel_size))


@register_rule(*_TRANSPOSED, parameter="weight")
def transposed_conv_weight(total: Tensor, layer: Any, a: Tensor, delta: Tensor) -> None:
    """A transposed convolution is a convolution from output to input, so a and delta change places."""
    positions = a.shape[2:]
    inputs = a.reshape(len(a), layer.groups, layer.in_channels // layer.groups, -1)

    def outputs(rows: slice) -> Tensor:
        padded = F.pad(delta[rows], layer._reversed_padding_repeated_twice)
        return patches(padded, layer.kernel_size, layer.stride, layer.dilation, positions, layer.groups)

    _add_products(total, inputs, outputs, floats=prod(positions) * layer.out_channels * prod(layer.kernel_size))


def _add_products(total: Tensor, left: Tensor, right: Callable[[slice], Tensor], floats: int) -> None:
    """total += sum_n (sum_l left_ngol right_ngkl)^2, where total is [g*o, k] up to its shape."""
    rows, *_, positions = left.shape
    if positions == 1:
        squares = right(slice(0, rows)).squeeze(-1).square()
        product = torch.einsum("ngo,ngk->gok", left.squeeze(-1).square(), squares)
        total += product.reshape(total.shape)
        return
    _add_squares(total, rows, total.numel() + floats, lambda chunk: left[chunk] @ right(chunk).mT)


@register_rule(*CONVOLUTIONS, *_TRANSPOSED, parameter="bias")
def conv_bias(total: Tensor, layer: nn.Module, a: Tensor, delta: Tensor) -> None:
    total += delta.flatten(2).sum(2).square().sum(0)


# Normalisations: z = scale * xhat + shift


def _add_norm(total: Tensor, delta: Tensor, xhat: Tensor | None, shared: tuple[int, ...]) -> None:
    """total += sum_n (sum over the positions ``shared`` of delta * xhat)^2."""
    each = delta if xhat is None else delta * xhat
    total += (each.sum(shared) if shared else each).square().sum(0)


def _channel_positions(delta: Tensor) -> tuple[int, ...]:
    return tuple(range(2, delta.ndim))


@register_rule(*_BATCH_NORMS, parameter="weight")
def batch_norm_weight(total: Tensor, layer: Any, a: Tensor, delta: Tensor) -> None:
    """In eval mode xhat comes from the running statistics, so samples do not mix."""
    xhat = F.batch_norm(a, layer.running_mean, layer.running_var, eps=layer.eps)
    _add_norm(total, delta, xhat, _channel_positions(delta))


@register_rule(nn.GroupNorm, parameter="weight")
def group_norm_weight(total: Tensor, layer: Any, a: Tensor, delta: Tensor) -> None:
    _add_norm(total, delta, F.group_norm(a, layer.num_groups, eps=layer.eps), _channel_positions(delta))


@register_rule(*_BATCH_NORMS, nn.GroupNorm, parameter="bias")
def channel_norm_bias(total: Tensor, layer: nn.Module, a: Tensor, delta: Tensor) -> None:
    _add_norm(total, delta, None, _channel_positions(delta))


def _outer_positions(layer: Any, delta: Tensor) -> tuple[int, ...]:
    return tuple(range(1, delta.ndim - len(layer.normalized_shape)))


@register_rule(nn.LayerNorm, parameter="weight")
def layer_norm_weight(total: Tensor, layer: Any, a: Tensor, delta: Tensor) -> None:
    xhat = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    _add_norm(total, delta, xhat, _outer_positions(layer, delta))


@register_rule(nn.LayerNorm, parameter="bias")
def layer_norm_bias(total: Tensor, layer: nn.Module, a: Tensor, delta: Tensor) -> None:
    _add_norm(total, delta, None, _outer_positions(layer, delta))


@register_rule(nn.RMSNorm, parameter="weight")
def rms_norm_weight(total: Tensor, layer: Any, a: Tensor, delta: Tensor) -> None:
    xhat = F.rms_norm(a, layer.normalized_shape, eps=layer.eps)
    _add_norm(total, delta, xhat, _outer_positions(layer, delta))


@register_rule(nn.Embedding, parameter="weight")
def embedding_weight(total: Tensor, layer: Any, a: Tensor, delta: Tensor) -> None:
    """The gradient of a token sums delta over the positions that hold it: sum by (sample, token), then square."""
    sample = torch.arange(len(a), device=a.device).unsqueeze(1)
    keys, place = torch.unique(sample * layer.num_embeddings + a.reshape(len(a), -1), return_inverse=True)
    sums = delta.new_zeros(len(keys), layer.embedding_dim)
    sums.index_add_(0, place.flatten(), delta.reshape(-1, layer.embedding_dim))
    token = keys % layer.num_embeddings
    if layer.padding_idx is not None:
        sums[token == layer.padding_idx] = 0
    total.index_add_(0, token, sums.square_())
