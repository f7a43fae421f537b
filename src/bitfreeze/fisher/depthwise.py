"""Squared gradients of depthwise convolutions. Index letters: see registry.py."""

from itertools import product
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

from .memory import row_chunks
from .patches import pad_input

CACHE = 2**20  # bytes of inputs and output gradients that stay in the processor's cache


def add_depthwise(total: Tensor, layer: Any, a: Tensor, delta: Tensor) -> None:
    """total += sum over n of G^2, where G_nok = sum_l delta_nol a_no(l shifted by k) for each kernel entry k.

    With samples and channels last, each kernel entry is one product of long rows. Positions whose input lies in a
    padding of zeros are left out: where the kernel is as large as the picture, that is most of them.
    """
    zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    a, padding = (a, layer.padding) if zeros else (pad_input(layer, a), (0,) * len(layer.kernel_size))
    sizes, positions, axes = a.shape[2:], delta.shape[2:], tuple(range(len(layer.kernel_size)))
    floats = a.shape[1] * (prod(sizes) + prod(positions))
    for rows in row_chunks(len(a), floats * a.element_size(), CACHE):
        x, d = (tensor[rows].movedim((0, 1), (-2, -1)).contiguous() for tensor in (a, delta))  # [*l, n, o]
        gradient = x.new_zeros(prod(layer.kernel_size), *x.shape[-2:])
        for k, entry in enumerate(product(*map(range, layer.kernel_size))):
            shifts = [entry[axis] * layer.dilation[axis] - padding[axis] for axis in axes]
            spans = [_spans(shifts[axis], layer.stride[axis], sizes[axis], positions[axis]) for axis in axes]
            if all(at.start < at.stop for _, at in spans):
                seen, reached = x[tuple(inputs for inputs, _ in spans)], d[tuple(at for _, at in spans)]
                torch.sum(seen * reached, axes, out=gradient[k])
        total += gradient.square_().sum(1).T.reshape(total.shape)


def _spans(shift: int, stride: int, size: int, positions: int) -> tuple[slice, slice]:
    """Inputs and positions along one axis for which the input, at position * stride + shift, is not padding."""
    first = max(0, ceil(-shift / stride))
    stop = min(positions, (size - 1 - shift) // stride + 1)
    return slice(first * stride + shift, max(0, (stop - 1) * stride + shift + 1), stride), slice(first, stop)
