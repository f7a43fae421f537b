"""Thin gradients: the product from rows is the product with the whole gradient, and only where rows are few."""

import pytest
import torch
from torch import nn

from bitfreeze.lab.methods.thin_gradients import ThinGradients


def symmetric(width):
    matrix = torch.randn(width, width, dtype=torch.float64)
    return matrix @ matrix.T


def whole_gradient(layer):
    parts = [layer.weight.grad] if layer.bias is None else [layer.weight.grad, layer.bias.grad[:, None]]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shapes", [[(5, 40)], [(2, 3, 40)], [(3, 40), (4, 40)]], ids=["rows", "positions", "two calls"]
)
def test_product_is_that_of_the_whole_gradient(bias, shapes):
    torch.manual_seed(0)
    layer, thin = nn.Linear(40, 30, bias=bias).double(), ThinGradients()
    with thin.recorded([layer]):
        outputs = [layer(torch.randn(shape, dtype=torch.float64)).tanh().square().sum() for shape in shapes]
    torch.stack(outputs).sum().backward()
    left, right = symmetric(30), symmetric(40 + bias)
    torch.testing.assert_close(thin.between(layer, left, right), left @ whole_gradient(layer) @ right)
    assert not layer._forward_hooks


def test_an_output_that_is_changed_in_place_has_the_gradient_of_before():
    torch.manual_seed(0)
    layer, thin = nn.Linear(40, 30).double(), ThinGradients()
    with thin.recorded([layer]):
        layer(torch.randn(5, 40, dtype=torch.float64)).relu_().square().sum().backward()
    left, right = symmetric(30), symmetric(41)
    torch.testing.assert_close(thin.between(layer, left, right), left @ whole_gradient(layer) @ right)


def test_many_rows_other_layers_and_missing_gradients_have_none():
    wide, convolution, unused, thin = nn.Linear(40, 30), nn.Conv1d(3, 3, 1), nn.Linear(40, 30), ThinGradients()
    with thin.recorded([wide, convolution, unused]):
        loss = wide(torch.randn(8, 40)).sum() + convolution(torch.randn(1, 3, 4)).sum()
        unused(torch.randn(1, 40))
    loss.backward()
    assert [thin.between(layer, torch.eye(30), torch.eye(41)) for layer in (wide, convolution, unused)] == [None] * 3


def test_the_next_pass_forgets_the_last():
    layer, thin = nn.Linear(40, 30), ThinGradients()
    for x in torch.randn(2, 5, 40):
        layer.zero_grad()
        with thin.recorded([layer]):
            layer(x).square().sum().backward()
    torch.testing.assert_close(thin.between(layer, torch.eye(30), torch.eye(41)), whole_gradient(layer))
