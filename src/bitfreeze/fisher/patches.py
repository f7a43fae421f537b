"""Patches of a convolution: the part of its padded input that each position sees."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def pad_input(layer: Any, a: Tensor) -> Tensor:
    """The input of a convolution with its padding, in any padding mode."""
    padding = layer._reversed_padding_repeated_twice
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(a, padding, mode=mode) if any(padding) else a


def patch_view(a: Tensor, kernel: Sequence[int], stride: Any, dilation: Any, positions: Sequence[int]) -> Tensor:
    """Patches of a padded input, [n, channel, *kernel, *positions], as a view."""
    n, channels, *_ = a.shape
    s_n, s_c, *s_x = a.stride()
    in_kernel = (d * s for d, s in zip(dilation, s_x, strict=True))
    between_positions = (t * s for t, s in zip(stride, s_x, strict=True))
    return a.as_strided((n, channels, *kernel, *positions), (s_n, s_c, *in_kernel, *between_positions))


def patches(a: Tensor, kernel: Any, stride: Any, dilation: Any, positions: Any, groups: int) -> Tensor:
    """Patches of a padded input, [n, g, i*k, l]: the view is copied once."""
    view = patch_view(a, kernel, stride, dilation, positions)
    return view.reshape(len(a), groups, a.shape[1] // groups * prod(kernel), prod(positions))
