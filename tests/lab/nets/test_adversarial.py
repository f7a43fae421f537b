"""The networks of ACL, and gradients that come back reversed."""

import pytest
import torch

from bitfreeze.lab.nets.adversarial import reverse_gradient, shared_private


def test_gradient_reversal_is_the_identity_forward_and_minus_its_strength_backward():
    x = torch.randn(3, 4, requires_grad=True)
    weights = torch.randn(3, 4)
    for strength in (1.0, 0.25):
        assert torch.equal(reverse_gradient(x, strength), x)
        (gradient,) = torch.autograd.grad((reverse_gradient(x, strength) * weights).sum(), x)
        assert torch.equal(gradient, -strength * weights)


@pytest.mark.parametrize(
    ("shape", "classes", "options", "count"),
    [
        ((3, 84, 84), [5] * 20, {"latent": 256, "head_units": 128, "head_inner": 64}, 28_101_028),
        (
            (3, 32, 32),
            [10] * 5,
            {"latent": 130, "head_units": 220, "head_inner": 110, "shared_width": 1024, "private_channels": 32},
            4_116_740,
        ),
        (
            (1, 28, 28),
            [2] * 5,
            {},
            784 * 175 + 175 + 175 * 64 + 64 + 5 * (784 * 64 + 64 + 128 * 28 + 28 + 28 * 14 + 14 + 30),
        ),
    ],
    ids=["mini-ImageNet 28.10 M", "five datasets 4.117 M", "MNIST-5"],
)
def test_parameter_counts_are_those_of_the_released_networks(shape, classes, options, count):
    with torch.device("meta"):
        net = shared_private(shape, classes, **options)
    assert sum(p.numel() for p in net.parameters()) == count


def test_convolutional_networks_give_scores_and_codes():
    net = shared_private((3, 32, 32), [10, 3], latent=6, shared_width=20, private_channels=4).eval()
    x = torch.randn(2, 3, 32, 32)
    shared, private = net.codes(x, 1)
    assert shared.shape == private.shape == (2, 6)
    assert net(x, 1).shape == (2, 3)
    assert torch.equal(net(x, 1), net.heads[1](torch.cat([private, shared], 1)))
    with pytest.raises(ValueError, match="must be pictures of at least 20x20 pixels"):
        shared_private((3, 8, 8), [2])
    assert all(module.training for module in shared_private((3, 32, 32), [2]).modules())
