"""The multi-layer perceptron of the MNIST benchmarks."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

import torch
from torch import nn

from .multihead import MultiHead

WIDEST = 1_000_000
Initial = Literal["normal", "uniform"]
Widths = Annotated[Sequence[int], "widths of the hidden layers"]


def mlp(
    shape: Sequence[int],
    classes: Sequence[int],
    hidden: Widths = (1200,),
    init: Annotated[Initial, "weights start from N(0, 1 / fan_in), or as torch makes them"] = "normal",
    bias: Annotated[bool, "layers and heads have biases"] = True,
) -> MultiHead:
    """Linear layers with ReLU. Biases start at 0, and heads as torch makes them."""
    require_widths(hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [prod(shape), *hidden]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
        initialise_(layers[-2], init)
    return MultiHead(nn.Sequential(*layers), widths[-1], classes, bias=bias)


@torch.no_grad()
def initialise_(layer: nn.Module, init: Initial = "normal") -> None:
    """Set biases to 0. Draw weights from N(0, 1 / fan_in) for "normal", and keep torch's for "uniform"."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        if init == "normal":
            layer.weight.normal_(0, layer.weight[0].numel() ** -0.5)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def require_widths(hidden: Widths) -> None:
    if not all(1 <= width <= WIDEST for width in hidden):
        raise ValueError(
            f"network.hidden must be a list of widths of at least 1 and at most {WIDEST:,}, got {list(hidden)}"
        )
