"""The convolutions of the networks of HAT's code: each with ReLU, dropout and pooling by two."""

from collections.abc import Sequence

from torch import nn


def kernels(shape: Sequence[int]) -> tuple[int, int, int]:
    """4, 3, 2 for pictures of 32x32 pixels; 10, 8, 2 for 84x84."""
    if len(shape) != 3 or min(shape[1:]) < 20:
        raise ValueError(
            f"convolutional networks need pictures of 20x20 pixels or more, and inputs here are {tuple(shape)}: "
            "use perceptrons ('mlp')"
        )
    size = min(shape[1:])
    return size // 8, size // 10, 2


def convolution(inputs: int, outputs: int, kernel: int, dropout: float) -> dict[str, nn.Module]:
    """Convolution, ReLU, dropout, pooling; ReLU comes last, where a quarter of the numbers are left.

    That is the same: ReLU keeps order and so commutes with the maximum, and what dropout does is times 0 or more.
    """
    return {
        "conv": nn.Conv2d(inputs, outputs, kernel),
        "dropout": nn.Dropout(dropout),
        "pool": nn.MaxPool2d(2),
        "relu": nn.ReLU(),
    }


def features(shape: Sequence[int], channels: int, layers: int = 3) -> int:
    """How many numbers leave the first ``layers`` convolutions."""
    count = channels
    for size in shape[1:]:
        for kernel in kernels(shape)[:layers]:
            size = (size - kernel + 1) // 2
        count *= size
    return count
