"""Projected gradients of linear layers against the formula, on the gradients that autograd gives."""

import pytest
import torch
from torch import nn

from bitfreeze.lab.methods.projection import learn_projected, project_

BASIS = torch.linalg.qr(torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
SHARES = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)


def layer_and_inputs(bias: bool, shape: tuple[int, ...]) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(1)
    layer = nn.Linear(7 - bias, 5, bias=bias, dtype=torch.float64)
    return layer, torch.randn(*shape, 7 - bias, dtype=torch.float64, requires_grad=True)


def gradients(layer: nn.Linear, x: torch.Tensor) -> list[torch.Tensor]:
    """Of the weight, the bias and the inputs, where the layer is used twice in one step."""
    layer.zero_grad()
    x.grad = None
    (layer(x).tanh().square().sum() + layer(x.flip(0).exp()).sin().sum()).backward()
    return [tensor.grad.clone() for tensor in (*layer.parameters(), x)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 3, 4)])
@pytest.mark.parametrize("shares", [None, SHARES])
def test_projected_inputs_give_the_projected_gradient(bias, shape, shares):
    layer, x = layer_and_inputs(bias, shape)
    *plain, of_inputs = gradients(layer, x)
    joined = torch.cat([part.reshape(5, -1) for part in plain], 1)
    weights = torch.ones(3, dtype=torch.float64) if shares is None else shares
    wanted = joined @ (torch.eye(7, dtype=torch.float64) - BASIS * weights @ BASIS.T)

    project_(layer, (BASIS, shares))
    where_it_stands = torch.cat([p.grad.reshape(5, -1) for p in layer.parameters()], 1)
    learn_projected(layer, lambda: (BASIS, shares))
    *projected, same = gradients(layer, x)

    torch.testing.assert_close(where_it_stands, wanted)
    torch.testing.assert_close(torch.cat([part.reshape(5, -1) for part in projected], 1), wanted)
    torch.testing.assert_close(same, of_inputs)


def test_without_a_basis_gradients_are_plain():
    layer, x = layer_and_inputs(True, (4,))
    plain = gradients(layer, x)
    learn_projected(layer, lambda: None)
    for now, before in zip(gradients(layer, x), plain, strict=True):
        assert torch.equal(now, before)


def test_the_gradient_is_orthogonal_in_bfloat16_too():
    torch.manual_seed(0)
    layer, basis = nn.Linear(64, 32), torch.linalg.qr(torch.randn(65, 20)).Q
    learn_projected(layer, lambda: (basis, None))
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(torch.randn(16, 64))
        assert output.dtype == torch.bfloat16
        output.float().square().sum().backward()
    joined = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
    assert (joined @ basis).norm() < 1e-5 * joined.norm()
