"""The convolutions of HAT's networks, each with ReLU, dropout and pooling by two."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .dropout import PoolReLU


class ChannelsLast(nn.Module):
    """Puts the channels of a pixel side by side in memory, because convolutions and pooling are faster that way.

    Later layers keep this layout. Weights keep theirs.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


def convolutions(
    shape: Sequence[int], channels: Sequence[int], dropout: Sequence[float], norm: bool = False, bias: bool = True
) -> dict[str, nn.Module]:
    """Layers by name: a convolution, a norm if wanted, and a pooling for each of ``channels``."""
    layers: dict[str, nn.Module] = {"channels_last": ChannelsLast()}
    widths = zip([shape[0], *channels], channels, kernels(shape), dropout, strict=False)
    for number, (inputs, outputs, kernel, share) in enumerate(widths, 1):
        layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, kernel, bias=bias)
        if norm:
            layers[f"conv_norm{number}"] = nn.BatchNorm2d(outputs, track_running_stats=False)
        layers[f"pool{number}"] = PoolReLU(share)
    return layers


def features(shape: Sequence[int], channels: Sequence[int]) -> int:
    """Number of features after these convolutions."""
    count = channels[-1]
    for size in shape[1:]:
        for kernel in kernels(shape)[: len(channels)]:
            size = (size - kernel + 1) // 2
        count *= size
    return count


def kernels(shape: Sequence[int]) -> tuple[int, int, int]:
    """Kernel sizes: 4, 3, 2 for pictures of 32x32 pixels, and 10, 8, 2 for 84x84."""
    if len(shape) != 3 or min(shape[1:]) < 20:
        raise ValueError(
            f"inputs of convolutional networks must be pictures of at least 20x20 pixels, got shape {tuple(shape)}; "
            "use network.kind=mlp"
        )
    size = min(shape[1:])
    return size // 8, size // 10, 2
