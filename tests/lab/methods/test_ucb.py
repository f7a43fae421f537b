"""Uncertainty-guided Bayesian networks: prior, learning rates, and the faults of the released code."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence

from bitfreeze.lab.methods import make_method, ucb
from bitfreeze.lab.methods.ucb import log_mixture, mean_log_density
from bitfreeze.lab.training import accuracy
from support import bayesian_tasks
from support.bayesian_tasks import first_batch

NO_DIVERGENCE = {"log_q": 0.0, "log_p": 0.0}
SHARED = ["backbone.1.weight", "backbone.1.bias"]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


prepare, learn = partial(bayesian_tasks.prepare, "ucb"), partial(bayesian_tasks.learn, lr=0.1)


def begin(stream, method, net, index):
    task = stream.tasks[index]
    method.begin_task(task, stream.load(task))
    net.train()
    return task


def snapshot(net) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in net.named_parameters()}


def step_and_gradients(stream, method, net, index, lr):
    """How far a step moved each parameter, and the gradient there, for the same draws of the weights."""
    task, batch = begin(stream, method, net, index), first_batch(stream, index)
    state = torch.get_rng_state()
    net.zero_grad()
    (method.loss(batch) + (method.penalty(task) or 0)).backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    torch.set_rng_state(state)
    before = snapshot(net)
    method.train_batch(batch, 0.0, method.optimizers(task, lr))
    return {name: value - before[name] for name, value in snapshot(net).items()}, gradients, before


# prior and posterior


@pytest.mark.parametrize(("share", "wide", "narrow"), [(0.25, 1.0, math.exp(-6)), (0.75, 2.0, 0.5), (0.5, 3.0, 0.1)])
def test_the_prior_is_the_mixture_of_torch_distributions(share, wide, narrow):
    w = torch.cat([torch.linspace(-5, 5, 101), torch.linspace(-0.02, 0.02, 101), torch.zeros(1)]).double()
    parts = Normal(torch.zeros(2).double(), torch.tensor([wide, narrow], dtype=torch.float64))
    mixture = MixtureSameFamily(Categorical(torch.tensor([share, 1 - share], dtype=torch.float64)), parts)
    torch.testing.assert_close(log_mixture(w, share, wide, narrow), mixture.log_prob(w))
    torch.testing.assert_close(log_mixture(w.float(), share, wide, narrow), mixture.log_prob(w).float())


def test_a_prior_of_one_part_is_a_gaussian_with_its_gradient():
    w = torch.randn(20).requires_grad_()
    log_p = log_mixture(w, 1.0, 0.7, 0.1)
    log_p.sum().backward()
    torch.testing.assert_close(log_p, Normal(0.0, 0.7).log_prob(w))
    torch.testing.assert_close(w.grad, -w.detach() / 0.7**2)


def test_the_mean_log_density_is_minus_the_entropy_and_has_the_gradient_of_any_draw():
    rho = torch.randn(20).requires_grad_()
    torch.testing.assert_close(mean_log_density(F.softplus(rho)), -Normal(0.0, F.softplus(rho)).entropy())
    (expected,) = torch.autograd.grad(mean_log_density(F.softplus(rho)).sum(), rho)
    sigma = F.softplus(rho)
    drawn = Normal(0.3, sigma).log_prob(0.3 + sigma * torch.randn(20)).sum()
    torch.testing.assert_close(torch.autograd.grad(drawn, rho)[0], expected)


def gaussian_prior(**more):
    return prepare(prior_share=1.0, prior_wide=0.5, log_q=1.0, log_p=1.0, nll=1.0, **more)


def test_the_penalty_averages_to_the_closed_form_where_the_prior_is_one_gaussian():
    stream, _, method, net = gaussian_prior()
    task = begin(stream, method, net, 0)
    with torch.no_grad():
        draws = torch.stack([method.penalty(task) for _ in range(300)])
    named = dict(net.named_parameters())
    names = [*SHARED, "heads.0.weight", "heads.0.bias"]
    posteriors = [Normal(named[n], F.softplus(named[f"{n}_spread"])) for n in names]
    expected = sum(kl_divergence(q, Normal(0.0, 0.5)).sum().item() for q in posteriors) / method.count
    assert draws.mean().item() == pytest.approx(expected, abs=5 * draws.std().item() / 300**0.5)
    assert draws.std().item() < 0.01 * expected  # why one draw is enough


def test_the_divergence_has_its_gradient_in_rho_and_mean():
    """The released code detaches it."""
    stream, _, method, net = gaussian_prior()
    task = begin(stream, method, net, 0)
    torch.stack([method.penalty(task) for _ in range(400)]).mean().backward()
    layer = net.backbone[1]
    mean, rho = layer.weight.detach(), layer.weight_spread.detach().requires_grad_()
    closed = kl_divergence(Normal(mean, F.softplus(rho)), Normal(0.0, 0.5)).sum() / method.count
    (expected,) = torch.autograd.grad(closed, rho)
    torch.testing.assert_close(layer.weight_spread.grad, expected, rtol=0.02, atol=0)
    noise = 6 * F.softplus(rho.detach()) / 0.5**2 / 20 / method.count
    assert ((layer.weight.grad - mean / 0.5**2 / method.count).abs() < noise).all()


def test_the_three_weights_count_by_their_ratios():
    penalties = []
    for log_q, log_p, nll in [(1e-3, 1e-3, 0.05), (2e-2, 2e-2, 1.0), (2e-2, 0.0, 1.0), (0.0, 2e-2, 1.0)]:
        torch.manual_seed(0)
        stream, _, method, net = prepare(log_q=log_q, log_p=log_p, nll=nll)
        penalties.append(method.penalty(begin(stream, method, net, 0)).item())
    released, same, entropy, prior = penalties
    assert released == pytest.approx(same, rel=1e-5)
    assert same == pytest.approx(entropy + prior, rel=1e-5)
    assert abs(entropy) > 0.01
    assert abs(prior) > 0.01


def test_noise_follows_rho_after_a_step(monkeypatch):
    """The released code computes sigma once."""
    monkeypatch.setattr(ucb, "RHO_NOISE", 0.0)
    stream, _, method, net = prepare(rho=-2.0, samples=1)
    task, layer = begin(stream, method, net, 0), net.backbone[1]
    before = layer.weight_spread.detach().clone()
    method.train_batch(first_batch(stream, 0), 0.0, method.optimizers(task, 50.0))
    assert not torch.equal(layer.weight_spread, before)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        layer.bias_spread.fill_(-math.inf)
        one = torch.zeros(1, 64)
        one[0, torch.argmax((layer.weight_spread - before).abs().sum(0))] = 1
        net.draw.samples, net.draw.batch = 4000, 1
        measured = layer(one).std(0)
    expected = F.softplus(layer.weight_spread) @ one[0]
    torch.testing.assert_close(measured, expected.detach(), rtol=0.06, atol=0)
    assert (expected - F.softplus(before[0, 0])).abs().max() > 0.01


# learning rates


def test_in_the_first_task_all_learn_at_the_plain_rate():
    stream, _, method, net = prepare()
    moved, gradients, _ = step_and_gradients(stream, method, net, 0, lr=0.1)
    assert set(gradients) == {n for n in moved if n.startswith(("backbone.", "heads.0."))}
    for name, gradient in gradients.items():
        torch.testing.assert_close(moved[name], -0.1 * gradient, rtol=1e-4, atol=1e-6)


def test_later_the_rate_of_each_shared_mean_is_scaled_by_its_deviation_and_no_other(monkeypatch):
    monkeypatch.setattr(ucb, "RHO_NOISE", 1.0)
    stream, _, method, net = prepare()
    learn(stream, method, net, stream.tasks[0])
    moved, gradients, before = step_and_gradients(stream, method, net, 1, lr=0.1)
    for name, gradient in gradients.items():
        rate = 0.1 * F.softplus(before[f"{name}_spread"]) if name in SHARED else 0.1
        torch.testing.assert_close(moved[name], -rate * gradient, rtol=1e-4, atol=1e-6)
    assert F.softplus(before[f"{SHARED[0]}_spread"]).std() > 0.02


def test_the_deviation_that_scales_is_that_of_the_start_of_the_task():
    stream, _, method, net = prepare()
    learn(stream, method, net, stream.tasks[0])
    start = {name: F.softplus(snapshot(net)[f"{name}_spread"]) for name in SHARED}
    begin(stream, method, net, 1)
    with torch.no_grad():
        for name in SHARED:
            net.get_parameter(f"{name}_spread").add_(1.0)  # as steps on rho might
    moved, gradients, _ = step_and_gradients(stream, method, net, 1, lr=0.1)
    for name in SHARED:
        torch.testing.assert_close(moved[name], -0.1 * start[name] * gradients[name], rtol=1e-4, atol=1e-6)
        assert moved[name].abs().max() > 1e-4


def test_a_run_that_goes_on_within_a_task_keeps_the_deviation_of_its_start():
    stream, _, method, net = prepare()
    learn(stream, method, net, stream.tasks[0])
    task = begin(stream, method, net, 1)
    method.train_batch(first_batch(stream, 1), 0.0, method.optimizers(task, 5.0))
    _, _, other, other_net = prepare()
    other.load_state_dict(method.state_dict())
    other_net.load_state_dict(net.state_dict())
    begin(stream, other, other_net, 1)
    assert method.sigma
    assert all(torch.equal(other.sigma[name], sigma) for name, sigma in method.sigma.items())
    method.end_task(task, stream.load(task))
    assert not method.sigma
    begin(stream, method, net, 2)
    assert torch.equal(method.sigma[SHARED[0]], F.softplus(net.backbone[1].weight_spread))


def test_weights_without_uncertainty_never_move():
    stream, _, method, net = prepare(**NO_DIVERGENCE)
    learn(stream, method, net, stream.tasks[0])
    certain = torch.rand(16, 64) < 0.5
    with torch.no_grad():
        net.backbone[1].weight_spread[certain] = -math.inf
    before = snapshot(net)[SHARED[0]]
    learn(stream, method, net, stream.tasks[1], epochs=3)
    moved = net.backbone[1].weight.detach() != before
    assert not moved[certain].any()
    assert moved[~certain].float().mean() > 0.5


def test_with_little_noise_and_no_divergence_it_is_fine_tuning_at_the_scaled_rate(monkeypatch):
    sigma = 1e-4
    monkeypatch.setattr(ucb, "RHO_NOISE", 0.0)
    stream, plain, method, net = prepare(rho=math.log(math.expm1(sigma)), mean_noise=None, **NO_DIVERGENCE)
    moved, _, before = step_and_gradients(stream, method, net, 1, lr=10.0)
    ft, task = make_method("ft", {}), stream.tasks[1]
    ft.build(plain, stream.tasks)
    ft.train_batch(first_batch(stream, 1), 0.0, ft.optimizers(task, 10.0 * sigma))
    expected = {name: value - before[name] for name, value in snapshot(plain).items()}
    for name in SHARED:
        torch.testing.assert_close(moved[name], expected[name], rtol=0, atol=2e-3 * expected[name].abs().max().item())
        assert expected[name].abs().max() > 1e-5
    scale = expected["heads.1.weight"].abs().max().item() / sigma
    torch.testing.assert_close(moved["heads.1.weight"], expected["heads.1.weight"] / sigma, rtol=0, atol=2e-3 * scale)


@pytest.mark.parametrize("lr", [0.1, 0.1 / 3])
@pytest.mark.parametrize("index", [0, 1])
def test_means_rhos_and_the_own_head_are_in_every_optimizer(index, lr):
    """The released code leaves out later heads, and the means after a drop of the learning rate."""
    stream, _, method, net = prepare()
    (optimizer,) = method.optimizers(stream.tasks[index], lr)
    names = {id(p): name for name, p in net.named_parameters()}
    trained = {names[id(p)] for group in optimizer.param_groups for p in group["params"]}
    assert trained == {name for name in names.values() if name.startswith(("backbone.", f"heads.{index}."))}


def test_the_head_of_a_later_task_learns():
    stream, _, method, net = prepare()
    learn(stream, method, net, stream.tasks[0])
    before = snapshot(net)
    learn(stream, method, net, stream.tasks[1])
    after = snapshot(net)
    assert not any(torch.equal(before[n], after[n]) for n in after if n.startswith("heads.1."))
    assert all(torch.equal(before[n], after[n]) for n in after if n.startswith(("heads.0.", "heads.2.")))


# loss, evaluation, and the whole


def test_the_loss_is_that_of_the_mean_log_probability_over_draws():
    stream, _, method, net = prepare(samples=6, rho=0.0)
    begin(stream, method, net, 0)
    batch, state = first_batch(stream, 0), torch.get_rng_state()
    log_probability = net(batch.x, 0, samples=6).log_softmax(-1).mean(0)
    torch.set_rng_state(state)
    torch.testing.assert_close(method.loss(batch), F.nll_loss(log_probability, batch.y))


def test_evaluation_uses_the_means():
    stream, plain, method, _ = prepare(mean_noise=None)
    batch = first_batch(stream, 0)
    assert torch.equal(method.logits(batch.x, batch.task), plain(batch.x, 0))


def test_validation_is_the_same_whenever_asked_and_draws_nothing_from_the_training_noise():
    stream, _, method, net = prepare()
    task = begin(stream, method, net, 0)
    net.eval()
    split, state = stream.load(task).valid, torch.get_rng_state()
    losses = [method.validation_loss([(task, split)], task, 100) for _ in range(2)]
    assert losses[0] == losses[1]
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        assert method.penalty(task) != method.penalty(task)  # in training noise is new each time


def test_initial_means_and_rhos_are_as_released():
    _, _, _, net = prepare(nn.Sequential(nn.Flatten(), nn.Linear(64, 500), nn.ReLU()), 500)
    layer = net.backbone[1]
    for values, mean, std in [(layer.weight, 0, 0.1), (layer.bias, 0, 0.1), (layer.weight_spread, -3, 0.1)]:
        assert values.mean().item() == pytest.approx(mean, abs=0.5 * std)
        assert values.std().item() == pytest.approx(std, rel=0.2)


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_a_convolutional_network_learns(sampling):
    backbone = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Flatten(), nn.Linear(128, 32), nn.ReLU(),
    )  # fmt: skip
    stream, _, method, net = prepare(backbone, 32, sampling=sampling, samples=3)
    for task in stream.tasks[:2]:
        learn(stream, method, net, task, epochs=6)
    assert all(accuracy(method, net, task, stream.load(task).test, 500) > 80 for task in stream.tasks[:2])


def test_what_is_kept_beside_the_network_is_a_rho_for_each_weight():
    stream, plain, method, net = prepare()
    learn(stream, method, net, stream.tasks[0])
    learn(stream, method, net, stream.tasks[1])
    assert method.extra_bytes() == 4 * sum(p.numel() for p in plain.parameters())
    assert method.state_dict()["sigma"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "method.samples must be at least 1, got 0"),
        ({"prior_share": 0.0}, r"method.prior_share must be in \(0, 1\], got 0.0"),
        ({"prior_narrow": 0.0}, "method.prior_narrow must be greater than 0, got 0.0"),
        ({"prior_narrow": 2.0}, "method.prior_wide must be greater than prior_narrow=2.0, got 1.0"),
        ({"nll": 0.0}, "method.nll must be greater than 0, got 0.0"),
        ({"weight_decay": 0.1}, "method.weight_decay must be 0, got 0.1; ucb has a prior"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prepare(**options)


def test_a_network_with_batch_norm_is_refused():
    with pytest.raises(ValueError, match=r"must be Linear or Conv2d, got a BatchNorm1d at 'backbone\.1'"):
        prepare(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 16)))
