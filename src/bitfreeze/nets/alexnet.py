"""The AlexNet of HAT, for pictures of 32x32 or 84x84 pixels."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from .convolutions import convolutions, features
from .dropout import Dropout
from .mlp import Flatten
from .multihead import MultiHead

INITIAL = ("normal", "uniform")


def alexnet(
    shape: Sequence[int], classes: Sequence[int], channels: Sequence[int] = (64, 128, 256),
    units: Sequence[int] = (2048, 2048), dropout: Sequence[float] = (0.2, 0.5), init: str = "normal",
) -> MultiHead:  # fmt: skip
    """Three convolutions and two linear layers. ``dropout``: of the first two layers, and of the others.

    Biases start at 0, weights at N(0, 1 / fan_in), or with ``init="uniform"`` as torch makes them; so are the heads.
    """
    _check(channels, units, dropout, init)
    early, late = dropout
    layers = {**convolutions(shape, channels, (early, early, late)), "flatten": Flatten()}
    for number, (inputs, outputs) in enumerate(pairwise([features(shape, channels), *units]), 1):
        layers |= {
            f"fc{number}": nn.Linear(inputs, outputs), f"relu{number}": nn.ReLU(), f"dropout{number}": Dropout(late),
        }  # fmt: skip
    backbone = nn.Sequential()
    for name, layer in layers.items():
        backbone.add_module(name, layer)
        _initialise(layer, init)
    return MultiHead(backbone, units[-1], classes)


@torch.no_grad()
def _initialise(layer: nn.Module, init: str) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        if init == "normal":
            layer.weight.normal_(0, layer.weight[0].numel() ** -0.5)
        nn.init.zeros_(layer.get_parameter("bias"))


def _check(channels: Sequence[int], units: Sequence[int], dropout: Sequence[float], init: str) -> None:
    for name, widths, count in (("channels", channels, 3), ("units", units, 2)):
        if len(widths) != count or not all(isinstance(width, int) and width > 0 for width in widths):
            raise ValueError(f"{name}={list(widths)} will not do: give {count} widths, each at least 1")
    if len(dropout) != 2 or not all(0 <= share < 1 for share in dropout):
        raise ValueError(
            f"dropout={list(dropout)} will not do: give the shares that early and late layers drop, each less than 1"
        )
    if init not in INITIAL:
        raise ValueError(f"init={init!r} is not known: use {' or '.join(map(repr, INITIAL))}")
