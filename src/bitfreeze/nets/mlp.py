"""The multi-layer perceptron of the MNIST benchmarks."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from .multihead import MultiHead


class Flatten(nn.Module):
    """[n, ...] to [n, features]; nothing to do where a stream gives vectors already."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def mlp(shape: Sequence[int], classes: Sequence[int], hidden: Sequence[int] = (1200,)) -> MultiHead:
    """Linear layers with ReLU. Weights start at N(0, 1 / fan_in), biases at 0, heads as torch makes them."""
    if not all(isinstance(width, int) and width > 0 for width in hidden):
        raise ValueError(f"hidden={list(hidden)} will not do: give the widths of the hidden layers, each at least 1")
    layers: list[nn.Module] = [Flatten()]
    features = prod(shape)
    for width in hidden:
        layer = nn.Linear(features, width)
        with torch.no_grad():
            layer.weight.normal_(0, features**-0.5)
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
        features = width
    return MultiHead(nn.Sequential(*layers), features, classes)
