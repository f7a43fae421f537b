"""Actor-critics: the paper's sizes, its start, and one pass for both outputs."""

import pytest
import torch

from bitfreeze import diagonal_fisher
from bitfreeze.lab.nets import ActorCritic, build_network

SHAPE = (4, 84, 84)


def build(kind: str, shape=SHAPE, actions=(14, 18)) -> ActorCritic:
    torch.manual_seed(0)
    return build_network({"kind": kind}, shape, actions)


def test_the_papers_network_has_the_papers_size():
    net = build("paper")
    assert sum(p.numel() for p in net.backbone.parameters()) == 6_538_464
    assert [tuple(p.shape) for p in net.heads[0].parameters()] == [(14, 1024), (14,)]
    assert [tuple(p.shape) for p in net.critics[1].parameters()] == [(1, 1024), (1,)]


@pytest.mark.parametrize(("kind", "features"), [("nature", 3136), ("small", 1568)])
def test_smaller_ones_have_the_same_places(kind, features):
    assert build(kind).backbone[8].in_features == features


def test_weights_start_orthogonal_and_biases_at_zero():
    net = build("small")
    for part, gain in ((net.backbone, 2**0.5), (net.heads, 0.01), (net.critics, 1.0)):
        for name, p in part.named_parameters():
            if name.endswith("bias"):
                assert not p.any()
                continue
            flat = p.detach().flatten(1).double()
            flat = flat if flat.shape[0] <= flat.shape[1] else flat.T
            torch.testing.assert_close(flat @ flat.T, gain**2 * torch.eye(len(flat)).double(), atol=1e-5, rtol=0)


def test_both_outputs_are_those_of_the_layers_one_by_one():
    net = build("small")
    x = torch.randint(256, (3, *SHAPE), dtype=torch.uint8)
    h = x.double() / 255
    for k in (1, 3, 5):
        h = torch.relu(torch.nn.functional.conv2d(h, net.backbone[k].weight.double(), stride=net.backbone[k].stride))
    h = torch.relu(h.flatten(1) @ net.backbone[8].weight.double().T)
    logits, value = net.act(x, 1)
    torch.testing.assert_close(logits.double(), h @ net.heads[1].weight.double().T, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(value.double(), (h @ net.critics[1].weight.double().T)[:, 0], atol=1e-5, rtol=1e-4)
    assert torch.equal(net(x, 1), logits)


@pytest.mark.parametrize(("kind", "shape"), [("small", (4,)), ("small", (4, 20, 20)), ("policy_mlp", SHAPE)])
def test_observations_that_do_not_fit_are_refused(kind, shape):
    with pytest.raises(ValueError, match=r"observations must be .*, got shape \[.*\]; (for vectors )?use"):
        build(kind, shape)


def test_the_fisher_of_the_policy_is_that_of_one_picture_at_a_time():
    """E over actions of the squared gradient of log pi(a | s), by autograd in float64: critics have no part in it."""
    net = build("small", actions=(5, 3))
    for head in net.heads:
        torch.nn.init.normal_(head.weight, std=0.1)  # a policy that is not undecided
    x = torch.randint(256, (6, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    found = diagonal_fisher(net, x.split(4), lambda x: net(x, 0), labels="exact")
    expected = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for row in x:
        log_p = net(row[None], 0).double().log_softmax(1)[0]
        for k in range(5):
            gradients = torch.autograd.grad(log_p[k], net.parameters(), retain_graph=True, allow_unused=True)
            for name, gradient in zip(expected, gradients, strict=True):
                if gradient is not None:
                    expected[name] += log_p[k].exp().item() * gradient.square() / 6
    for name, truth in expected.items():
        assert bool(truth.any()) == name.startswith(("backbone", "heads.0"))
        torch.testing.assert_close(found[name], truth, rtol=1e-3, atol=1e-5 * truth.max().item())
