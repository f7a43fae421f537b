"""The networks of ACL: a module that all tasks share, and a private module and a head for each task."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from .convolutions import convolutions, features
from .dropout import Dropout
from .multihead import MultiHead


class SharedPrivate(MultiHead):
    """``net(x, task)`` returns the scores of the task's head, from its private code and the backbone's shared code."""

    def __init__(self, shared: nn.Module, privates: Sequence[nn.Module], heads: Sequence[nn.Module]) -> None:
        super().__init__(shared, 0, ())
        self.privates = nn.ModuleList(privates)
        self.heads.extend(heads)

    def codes(self, x: Tensor, task: int) -> tuple[Tensor, Tensor]:
        """The shared and the private code."""
        return self.backbone(x), self.privates[task](x)

    def classify(self, shared: Tensor, private: Tensor, task: int) -> Tensor:
        return self.scores(torch.cat([private, shared], 1), task)

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.classify(*self.codes(x, task), task)

    def of_task(self, task: int) -> list[nn.Parameter]:
        return [*self.privates[task].parameters(), *super().of_task(task)]


def shared_private(
    shape: Sequence[int], classes: Sequence[int], *, latent: int = 64, units: int = 175, head_units: int = 28,
    head_inner: int = 14, shared_width: int = 512, private_channels: int = 16,
) -> SharedPrivate:  # fmt: skip
    """Networks of convolutions for colour pictures, else of linear layers."""
    if len(shape) == 3 and shape[0] > 1:
        shared = _shared_conv(shape, shared_width, latent)
        privates = [_private_conv(shape, private_channels, latent) for _ in classes]
    else:
        shared = _shared_mlp(shape, units, latent)
        privates = [_private_mlp(shape, latent) for _ in classes]
    return SharedPrivate(shared, privates, [_head(latent, head_units, head_inner, count) for count in classes])


def discriminator(latent: int, units: int, sources: int) -> nn.Sequential:
    """A classifier of the origin of a shared code: 0 is noise, k the k-th task."""
    return nn.Sequential(nn.Linear(latent, units), nn.LeakyReLU(), nn.Linear(units, units), nn.Linear(units, sources))


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradient, None


def reverse_gradient(x: Tensor, strength: float = 1.0) -> Tensor:
    """``x`` itself. Its gradient is multiplied by -strength."""
    reversed_: Tensor = _Reversal.apply(x, strength)  # type: ignore[no-untyped-call]
    return reversed_


def _shared_mlp(shape: Sequence[int], units: int, latent: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *_linear(prod(shape), units, 0.2), *_linear(units, latent, 0.2))


def _private_mlp(shape: Sequence[int], latent: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), latent), nn.ReLU())


def _shared_conv(shape: Sequence[int], width: int, latent: int) -> nn.Sequential:
    """The AlexNet of HAT with more and narrower linear layers."""
    channels = (64, 128, 256)
    first = convolutions(shape, channels, (0.2, 0.2, 0.5)).values()
    widths = [features(shape, channels), width, width, 512, latent]
    linear = [module for inputs, outputs in pairwise(widths) for module in _linear(inputs, outputs, 0.5)]
    return nn.Sequential(*first, nn.Flatten(), *linear)


def _private_conv(shape: Sequence[int], width: int, latent: int) -> nn.Sequential:
    channels = (width, width)
    first = convolutions(shape, channels, (0.2, 0.5)).values()
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(features(shape, channels), latent), nn.ReLU())


def _head(latent: int, first: int, second: int, classes: int) -> nn.Sequential:
    hidden = [nn.Linear(2 * latent, first), nn.ReLU(), nn.Dropout(0.5), nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(second, classes))


def _linear(inputs: int, outputs: int, dropout: float) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU(), Dropout(dropout)]
