"""The convolutions of the networks of HAT's code: each with ReLU, dropout and pooling by two."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .dropout import PoolReLU


class ChannelsLast(nn.Module):
    """Pictures as they were, with the channels of a pixel side by side in memory: so convolutions and pooling go fast.

    What comes after it keeps to that, and weights stay as they are.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


def convolutions(shape: Sequence[int], channels: Sequence[int], dropout: Sequence[float]) -> dict[str, nn.Module]:
    """As many layers as there are channels, by name."""
    layers: dict[str, nn.Module] = {"channels_last": ChannelsLast()}
    widths = zip([shape[0], *channels], channels, kernels(shape), dropout, strict=False)
    for number, (inputs, outputs, kernel, share) in enumerate(widths, 1):
        layers |= {f"conv{number}": nn.Conv2d(inputs, outputs, kernel), f"pool{number}": PoolReLU(share)}
    return layers


def features(shape: Sequence[int], channels: Sequence[int]) -> int:
    """How many numbers leave them."""
    count = channels[-1]
    for size in shape[1:]:
        for kernel in kernels(shape)[: len(channels)]:
            size = (size - kernel + 1) // 2
        count *= size
    return count


def kernels(shape: Sequence[int]) -> tuple[int, int, int]:
    """4, 3, 2 for pictures of 32x32 pixels; 10, 8, 2 for 84x84."""
    if len(shape) != 3 or min(shape[1:]) < 20:
        raise ValueError(
            f"convolutional networks need pictures of 20x20 pixels or more, and inputs here are {tuple(shape)}: "
            "use perceptrons ('mlp')"
        )
    size = min(shape[1:])
    return size // 8, size // 10, 2
