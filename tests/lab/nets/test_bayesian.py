"""Layers with a Gaussian for each weight, against plain layers, closed forms and brute force."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab.nets import BayesianConv2d, BayesianLinear, BayesianMultiHead, MultiHead
from bitfreeze.lab.nets.bayesian import Draw

NO_NOISE = float("-inf")  # as spread: softplus and exp are 0 there

CONVOLUTIONS = [
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2},
    {"groups": 2},
    {"padding": "same", "bias": False},
    {"stride": (1, 2), "padding": (2, 0), "dilation": (1, 2), "groups": 4},
]


def chain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10), nn.ReLU()
    )


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("blocks", [1, 3], ids=["first", "later"])
def test_a_linear_layer_without_noise_is_the_plain_layer(local, bias, blocks):
    plain, x = nn.Linear(5, 4, bias=bias), torch.randn(6 * blocks, 5)
    layer = BayesianLinear(plain, NO_NOISE, F.softplus, Draw(local=local, samples=3, batch=6))
    expected = plain(x) if blocks == 3 else plain(x).repeat(3, 1)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("blocks", [1, 3], ids=["first", "later"])
def test_a_convolution_without_noise_is_the_plain_layer(options, blocks):
    plain, x = nn.Conv2d(4, 8, 3, **options), torch.randn(2 * blocks, 4, 7, 9)
    layer = BayesianConv2d(plain, NO_NOISE, torch.exp, Draw(samples=3, batch=2))
    expected = plain(x) if blocks == 3 else plain(x).repeat(3, 1, 1, 1)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-6)


def test_without_samples_the_twin_is_the_plain_network_bitwise_under_the_same_names():
    net, x = MultiHead(chain(), 10, [2, 3]), torch.randn(5, 1, 8, 8)
    twin = BayesianMultiHead(net, -3.0, F.softplus)
    assert torch.equal(twin(x, 1), net(x, 1))
    assert {k: v.tolist() for k, v in net.state_dict().items()}.items() <= {
        k: v.tolist() for k, v in twin.state_dict().items()
    }.items()
    assert sum(p.numel() for p in twin.parameters()) == 2 * sum(p.numel() for p in net.parameters())
    assert all(type(layer) in (nn.Conv2d, nn.Linear) for layer in (net.backbone[0], net.backbone[4], net.heads[0]))


@pytest.mark.parametrize("blocks", [1, 4], ids=["first", "later"])
def test_all_rows_of_a_block_share_one_draw_of_the_weights_and_blocks_do_not(blocks):
    rows, probe = (
        torch.randn(6, 3),
        torch.cat([torch.zeros(1, 3), torch.eye(3)]),
    )  # the probe reads off bias and weights
    layer = BayesianLinear(nn.Linear(3, 2), -1.0, F.softplus, Draw(samples=4, batch=10))
    out = layer(torch.cat([probe, rows]).repeat(blocks, 1)).view(4, 10, 2)
    biases = out[:, 0]
    weights = out[:, 1:4] - biases[:, None]
    torch.testing.assert_close(out[:, 4:], rows @ weights + biases[:, None])
    assert len({tuple(w.flatten().tolist()) for w in weights}) == 4


def test_a_convolution_draws_its_weights_from_the_generator():
    plain, x = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), torch.randn(3, 2, 8, 8)
    layer = BayesianConv2d(
        plain, -1.0, F.softplus, Draw(samples=2, batch=3, generator=torch.Generator().manual_seed(1))
    )
    again, sigma = torch.Generator().manual_seed(1), F.softplus(torch.tensor(-1.0))
    expected = []
    for _ in range(2):
        weight = plain.weight + sigma * torch.empty_like(plain.weight).normal_(generator=again)
        bias = plain.bias + sigma * torch.empty_like(plain.bias).normal_(generator=again)
        expected.append(F.conv2d(x, weight, bias, 2, 1, 1, 2))
    torch.testing.assert_close(layer(x), torch.cat(expected))


@pytest.mark.parametrize("local", [False, True])
def test_mean_and_variance_of_the_outputs_are_those_of_the_weights(local):
    count, x = 5000, torch.randn(2, 3)
    layer = BayesianLinear(nn.Linear(3, 2), 0.0, torch.exp, Draw(local=local, samples=count, batch=2))
    with torch.no_grad():
        layer.weight_spread.uniform_(-2, 0)
        layer.bias_spread.uniform_(-2, 0)
        out = layer(x).view(count, 2, 2)
        mean = F.linear(x, layer.weight, layer.bias)
        deviation = F.linear(x**2, layer.weight_spread.exp() ** 2, layer.bias_spread.exp() ** 2).sqrt()
    error = 5 * count**-0.5
    assert ((out.mean(0) - mean).abs() / deviation).max() < error
    assert (out.std(0) / deviation - 1).abs().max() < error


def test_local_draws_are_independent_from_row_to_row_and_drawn_weights_are_not():
    x = torch.ones(2, 3)  # the same row twice
    correlations = []
    for local in (True, False):
        layer = BayesianLinear(nn.Linear(3, 1), 0.0, torch.exp, Draw(local=local, samples=5000, batch=2))
        correlations.append(torch.corrcoef(layer(x).detach().view(5000, 2).T)[0, 1].item())
    assert correlations == [pytest.approx(0, abs=0.06), pytest.approx(1, abs=1e-4)]


def test_both_ways_of_sampling_have_the_same_expected_loss_through_two_layers():
    net, count = MultiHead(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), 6, [3]), 10000
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    losses = []
    for sampling in ("weights", "local"):
        scores = BayesianMultiHead(net, -0.5, F.softplus, sampling)(x, 0, samples=count).detach()
        losses.append(F.cross_entropy(scores.flatten(0, 1), y.repeat(count), reduction="none").view(count, 5).mean(1))
    weights, local = losses
    error = (weights.std() / count**0.5).item()
    assert local.mean().item() == pytest.approx(weights.mean().item(), abs=5 * error)
    assert abs(weights.mean().item() - F.cross_entropy(net(x, 0), y).item()) > 20 * error  # noise does matter here


@pytest.mark.parametrize("local", [False, True])
def test_gradients_reach_means_and_spreads_as_the_closed_form_says(local):
    """E sum (m + s e)^2 = m^2 + s^2, whose gradient in m is 2 m and in log s is 2 s^2."""
    layer = BayesianLinear(nn.Linear(3, 2, bias=False), 0.0, torch.exp, Draw(local=local, samples=5000, batch=3))
    with torch.no_grad():
        layer.weight_spread.uniform_(-1, 0)
    (layer(torch.eye(3)).square().sum() / 5000).backward()
    sigma2 = layer.weight_spread.detach().exp() ** 2
    torch.testing.assert_close(layer.weight.grad, 2 * layer.weight.detach(), rtol=0, atol=0.12)
    torch.testing.assert_close(layer.weight_spread.grad, 2 * sigma2, rtol=0.1, atol=0)


def test_the_deviation_is_computed_anew_in_every_pass():
    layer = BayesianLinear(nn.Linear(1, 1, bias=False), -5.0, F.softplus, Draw(samples=5000, batch=1))
    before = layer(torch.ones(1, 1)).std().item()
    with torch.no_grad():
        layer.weight_spread.fill_(2.0)
    assert before == pytest.approx(0.0067, rel=0.1)
    assert layer(torch.ones(1, 1)).std().item() == pytest.approx(2.127, rel=0.1)


def test_local_draws_have_gradients_where_all_inputs_are_zero():
    layer = BayesianLinear(nn.Linear(3, 2, bias=False), -1.0, F.softplus, Draw(local=True, samples=2, batch=1))
    layer(torch.zeros(1, 3)).sum().backward()
    assert torch.isfinite(layer.weight_spread.grad).all()


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_draws_depend_on_the_generator_alone_and_the_network_can_be_copied(sampling):
    twin, x = BayesianMultiHead(MultiHead(chain(), 10, [2]), -2.0, F.softplus, sampling), torch.randn(4, 1, 8, 8)
    state = torch.get_rng_state()
    first = twin(x, 0, samples=3, generator=torch.Generator().manual_seed(5))
    other = copy.deepcopy(twin)(x, 0, samples=3, generator=torch.Generator().manual_seed(5))
    assert first.shape == (3, 4, 2)
    assert torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, twin(x, 0, samples=3, generator=torch.Generator().manual_seed(6)))


def test_a_layer_that_is_used_twice_has_one_twin():
    layer = nn.Linear(4, 4)
    twin = BayesianMultiHead(MultiHead(nn.Sequential(layer, nn.ReLU(), nn.Sequential(layer)), 4, [2]), -3.0, F.softplus)
    assert isinstance(twin.backbone[0], BayesianLinear)
    assert twin.backbone[0] is twin.backbone[2][0]


def test_gaussians_are_those_of_the_backbone_and_of_one_head():
    twin = BayesianMultiHead(MultiHead(chain(), 10, [2] * 12), -3.0, F.softplus)
    shared = ["backbone.0.weight", "backbone.0.bias", "backbone.4.weight", "backbone.4.bias"]
    assert list(twin.gaussians(1)) == [*shared, "heads.1.weight", "heads.1.bias"]  # not of heads 10 and 11
    assert len(twin.gaussians()) == len(shared) + 24
    mean, spread = twin.gaussians(1)["heads.1.weight"]
    assert mean is twin.heads[1].weight
    assert spread is twin.heads[1].weight_spread


@pytest.mark.parametrize(
    "module",
    [nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False), nn.LayerNorm(4), nn.Bilinear(4, 4, 4), nn.PReLU()],
    ids=lambda module: type(module).__name__,
)
def test_other_layers_with_parameters_or_statistics_are_refused(module):
    net = MultiHead(nn.Sequential(nn.Linear(4, 4), nn.Sequential(module)), 4, [2])
    with pytest.raises(
        ValueError, match=rf"must be Linear or Conv2d, got a {type(module).__name__} at 'backbone\.1\.0'"
    ):
        BayesianMultiHead(net, -3.0, F.softplus)


def test_other_paddings_are_refused():
    circular = MultiHead(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), nn.Flatten()), 64, [2])
    with pytest.raises(ValueError, match="padding_mode of a Bayesian convolution must be 'zeros', got 'circular'"):
        BayesianMultiHead(circular, -3.0, F.softplus)
