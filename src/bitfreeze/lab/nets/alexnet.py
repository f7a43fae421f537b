"""The AlexNet of HAT, for pictures of 32x32 or 84x84 pixels, and its form in GPM's code, with BatchNorm."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from torch import nn

from .convolutions import convolutions, features
from .dropout import Dropout
from .mlp import Initial, initialise_
from .multihead import MultiHead


def alexnet(
    shape: Sequence[int],
    classes: Sequence[int],
    channels: Annotated[Sequence[int], "channels of the three convolutions"] = (64, 128, 256),
    units: Annotated[Sequence[int], "widths of the two linear layers"] = (2048, 2048),
    dropout: Annotated[Sequence[float], "shares dropped after the first two layers, and after the others"] = (0.2, 0.5),
    init: Annotated[Initial, "weights start from N(0, 1 / fan_in), or as torch makes them"] = "normal",
    norm: Annotated[bool, "BatchNorm by the statistics of each batch, in tests too"] = False,
    bias: Annotated[bool, "layers and heads have biases"] = True,
) -> MultiHead:
    """Three convolutions and two linear layers. Biases start at 0, and heads as torch makes them."""
    _check(channels, units, dropout)
    early, late = dropout
    layers = {**convolutions(shape, channels, (early, early, late), norm, bias), "flatten": nn.Flatten()}
    for number, (inputs, outputs) in enumerate(pairwise([features(shape, channels), *units]), 1):
        layers[f"fc{number}"] = nn.Linear(inputs, outputs, bias=bias)
        if norm:
            layers[f"fc_norm{number}"] = nn.BatchNorm1d(outputs, track_running_stats=False)
        layers |= {f"relu{number}": nn.ReLU(), f"dropout{number}": Dropout(late)}
    backbone = nn.Sequential()
    for name, layer in layers.items():
        backbone.add_module(name, layer)
        initialise_(layer, init)
    return MultiHead(backbone, units[-1], classes, bias=bias)


def _check(channels: Sequence[int], units: Sequence[int], dropout: Sequence[float]) -> None:
    for name, widths, count in (("channels", channels, 3), ("units", units, 2)):
        if len(widths) != count or any(width < 1 for width in widths):
            raise ValueError(f"network.{name} must be {count} widths of at least 1, got {list(widths)}")
    if len(dropout) != 2 or not all(0 <= share < 1 for share in dropout):
        raise ValueError(f"network.dropout must be 2 shares of at least 0 and less than 1, got {list(dropout)}")
