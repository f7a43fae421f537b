"""Joined gradients of single samples, by autograd and without the library's factors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.truth import Readout, randomise


def readout(layer: nn.Module, shape: tuple[int, ...], samples: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    """A model around one layer, with data and labels, in float64."""
    x = torch.randn(samples, *shape)
    model = randomise(Readout(layer, x)).double()
    return model, x.double(), torch.randint(3, (samples,))


def joined_gradients(model: nn.Module, layer: Any, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of [W b] of each sample, [n, g, o, i]."""
    groups = getattr(layer, "groups", 1)
    parameters = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    rows = []
    for k in range(len(x)):
        score = -F.cross_entropy(model(x[k : k + 1]).flatten(0, -2), y[k : k + 1].flatten(), reduction="sum")
        found = torch.autograd.grad(score, parameters)
        rows.append(torch.cat([g.reshape(groups, len(layer.weight) // groups, -1) for g in found], -1))
    return torch.stack(rows)


def orthonormal(groups: int, width: int, k: int) -> Tensor:
    return torch.linalg.qr(torch.randn(groups, width, k, dtype=torch.float64)).Q


def assert_equal(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Equal up to a share of the largest entry, which is not zero."""
    assert found.shape == expected.shape
    largest = expected.abs().max()
    assert largest > 0
    assert (found - expected).abs().max() <= tolerance * largest
