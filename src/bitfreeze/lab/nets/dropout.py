"""Fast dropout for a CPU, alone and fused with pooling and ReLU.

torch draws a number for each entry and compares it in double precision, which takes longer than a convolution's forward
pass. Here 64 random bits serve four entries, so the probability of a drop is a multiple of 2^-16. Kept entries are
divided by the probability of being kept, and so the expectation stays the same.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STEPS = 2**16


def steps_of(share: float) -> int:
    """``share`` in units of 1 / STEPS, less than STEPS, so that the probability of being kept is never 0."""
    return min(round(share * STEPS), STEPS - 1)


def kept(x: Tensor, dropped: int) -> Tensor:
    """A mask in the memory layout of ``x``: 0 with probability dropped / STEPS, else 1."""
    count = x.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    bits = draws.view(torch.int16)[:count].ge_(dropped - STEPS // 2)
    mask = torch.empty_like(x)  # dense even where x is not, so that entries can be addressed in sequence
    mask.as_strided((count,), (1,)).copy_(bits)
    return mask


class Dropout(nn.Dropout):
    """torch's Dropout with a mask from ``kept``."""

    def forward(self, x: Tensor) -> Tensor:
        dropped = steps_of(self.p)
        if not (self.training and dropped):
            return x
        mask, scale = kept(x, dropped), STEPS / (STEPS - dropped)
        if x.dtype == torch.bfloat16:  # which would round the scale, and shift the expectation by up to 0.2 %
            return x * mask * scale
        return x * mask.mul_(scale)


class PoolReLU(nn.Module):
    """ReLU, dropout and the maximum of 2x2 pixels, for a convolution's output.

    ReLU comes last here, when a quarter of the numbers are left. The result is the same, because ReLU keeps order and
    the factors of dropout are not negative.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        dropped = steps_of(self.dropout)
        if not (self.training and dropped):
            return F.max_pool2d(x, 2).relu()
        result: Tensor = _DropPoolReLU.apply(x, dropped)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


class _DropPoolReLU(torch.autograd.Function):
    """Sends the gradient to the largest kept entry of each square if it is positive, so the mask is not saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        ctx.scale = STEPS / (STEPS - dropped)
        thinned = kept(x, dropped).mul_(x)
        largest, places = F.max_pool2d_with_indices(thinned, (2, 2))
        result: Tensor = largest.clamp_min_(0).mul_(ctx.scale)
        ctx.save_for_backward(result, places)
        ctx.size, ctx.stride = thinned.size(), thinned.stride()
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        result, places = ctx.saved_tensors
        outer = torch.ops.aten.threshold_backward(outer, result, 0).mul_(ctx.scale)
        like = outer.new_empty_strided(ctx.size, ctx.stride)  # gives the shape; its values are not read
        pair = (2, 2)
        return torch.ops.aten.max_pool2d_with_indices_backward(
            outer, like, pair, pair, (0, 0), (1, 1), False, places
        ), None
