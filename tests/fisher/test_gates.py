"""Layers whose gradient vanishes, is stopped or is computed twice."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from support.networks import (
    WIDTH,
    Gru,
    OwnLinear,
    Sequence,
    Stored,
    flattened,
    scrambled,
    sequences,
    straight,
    time_first,
)
from support.truth import check_batches


def linear():
    return nn.Linear(WIDTH, 4)


class Gated(Sequence):
    """Every sample goes through the layer, but a gate in the data stops it from counting."""

    def forward(self, x):
        return self.head((torch.tanh(self.around(self.layer, x)) * x[:, :1, :1]).mean(1) + x[:, 0, 1:5])


@pytest.mark.parametrize(
    ("make", "around"),
    [
        (linear, straight),
        (linear, flattened),
        (linear, time_first),
        (linear, scrambled),
        (OwnLinear, straight),
        (Stored, straight),
        (Gru, straight),
    ],
)
@pytest.mark.parametrize("cuts", [(8,), (4, 3, 1)])
def test_layer_whose_gradient_is_zero_in_the_first_samples(make, around, cuts):
    """Zero agrees with zero: nothing has been shown about the rule, or about torch.func."""
    x, y = sequences(8, 3)
    x[:4, 0, 0] = 0
    check_batches(Gated(around, make()), list(zip(x.split(cuts), y.split(cuts), strict=True)))


def test_torch_func_is_checked_too():
    rules = check_batches(Sequence(straight, Stored()), [sequences(6, 3)])
    assert rules["layer.kernel"].startswith("one sample at a time (")
    assert "torch.func disagrees with autograd" in rules["layer.kernel"]


@pytest.mark.parametrize("first", [1, 2])
def test_small_first_batch(first):
    batches = [sequences(first, 3), sequences(6, 3)]
    assert check_batches(Sequence(straight), batches)["layer.weight"] == "rule Linear.weight"
    assert "torch.func" in check_batches(Sequence(time_first), batches)["layer.weight"]


@pytest.mark.parametrize("around", [straight, flattened, time_first])
def test_activation_checkpointing(around):
    def rerun(layer, x):
        return checkpoint(around, layer, x, use_reentrant=False)

    rules = check_batches(
        Sequence(rerun, nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(inplace=True), nn.Linear(6, 4))), [sequences(6, 3)]
    )
    assert rules["head.weight"] == "rule Linear.weight"


def test_stopped_gradients():
    """What lies behind a detach has no information; a partly stopped layer has that of the other part."""
    behind = Sequence(lambda layer, x: layer(x).detach())
    rules = check_batches(behind, [sequences(6, 3), sequences(2, 3)], ["layer.weight", "layer.bias"])
    assert rules["head.weight"] == "rule Linear.weight"
    half = Sequence(lambda layer, x: torch.cat([h := layer(x)[:, :2], h[:, :1].detach() * 2], 1))
    assert check_batches(half, [sequences(6, 3)])["layer.weight"] == "rule Linear.weight"


def test_layer_run_without_gradients_and_with_them():
    def around(layer, x):
        with torch.no_grad():
            centre = layer(x).mean((0, 1), keepdim=True) * 0
        return layer(x) - centre

    assert "called 2 times" in check_batches(Sequence(around), [sequences(6, 3)])["layer.weight"]
