"""Variational continual learning: its divergence, priors, loss and predictions against closed forms and brute force."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal, kl_divergence

from bitfreeze.lab.methods import vcl as module
from bitfreeze.lab.training import accuracy
from support import bayesian_tasks
from support.bayesian_tasks import first_batch

NO_NOISE = -300.0  # a deviation of 0 in float32


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


prepare, learn = partial(bayesian_tasks.prepare, "vcl"), partial(bayesian_tasks.learn, lr=0.01)


def random_gaussian(size=50):
    return torch.randn(size), torch.randn(size)


def normal(mean, log_variance) -> Normal:
    return Normal(mean, (0.5 * log_variance).exp())


def divergence_by_torch(method, names) -> float:
    named = dict(method.net.named_parameters())
    return sum(
        kl_divergence(normal(named[n], named[f"{n}_spread"]), normal(*method.prior[n])).sum().item() for n in names
    )


# the divergence


def test_the_closed_form_is_that_of_torch_distributions():
    q, p = random_gaussian(), random_gaussian()
    expected = kl_divergence(normal(*q), normal(*p)).sum()
    torch.testing.assert_close(module.kl_divergence(*q, *p), expected)


def test_the_closed_form_is_what_draws_say():
    q, p = random_gaussian(5), random_gaussian(5)
    w = normal(*q).sample((200_000,))
    ratios = (normal(*q).log_prob(w) - normal(*p).log_prob(w)).sum(1)
    assert module.kl_divergence(*q, *p).item() == pytest.approx(ratios.mean().item(), abs=5 * ratios.std().item() / 447)


def test_a_gaussian_has_no_divergence_from_itself_and_no_gradient_there():
    mean, log_variance = (t.requires_grad_() for t in random_gaussian(1000))
    kl = module.kl_divergence(mean, log_variance, mean.detach(), log_variance.detach())
    kl.backward()
    assert kl.item() == 0
    assert not mean.grad.any()
    assert not log_variance.grad.any()


@given(st.tuples(*[st.floats(-8, 8, width=32)] * 4))
def test_the_divergence_is_never_negative(values):
    assert module.kl_divergence(*(torch.tensor(v) for v in values)).item() >= -1e-6


def test_without_variance_it_is_the_penalty_of_ewc_with_the_prior_precision_as_fisher():
    mean, narrow = torch.randn(50, dtype=torch.float64), torch.full((50,), -40.0, dtype=torch.float64)
    anchor, prior_log_variance = (t.double() for t in random_gaussian())
    moved = module.kl_divergence(mean, narrow, anchor, prior_log_variance)
    at_anchor = module.kl_divergence(anchor, narrow, anchor, prior_log_variance)
    fisher = 1 / prior_log_variance.exp()
    torch.testing.assert_close(moved - at_anchor, (0.5 * fisher * (mean - anchor) ** 2).sum())


# priors and the penalty


def test_the_first_prior_is_standard_normal_and_the_penalty_is_divided_by_the_number_of_samples():
    stream, _, method, _ = prepare()
    data = stream.load(stream.tasks[0])
    method.begin_task(stream.tasks[0], data)
    assert all(not mean.any() and not log_variance.any() for mean, log_variance in method.prior.values())
    names = ["backbone.1.weight", "backbone.1.bias", "heads.0.weight", "heads.0.bias"]
    expected = divergence_by_torch(method, names) / len(data.train)
    assert method.penalty(stream.tasks[0]).item() == pytest.approx(expected, rel=1e-5)


def test_the_penalty_sums_over_backbone_and_all_heads_so_far():
    stream, _, method, net = prepare()
    for task in stream.tasks[:2]:
        learn(stream, method, net, task)
    third = stream.tasks[2]
    data = stream.load(third)
    method.begin_task(third, data)
    optimizers = method.optimizers(third, 0.01)
    net.train()
    method.train_batch(first_batch(stream, 2), 0.0, optimizers)
    shared = ["backbone.1.weight", "backbone.1.bias"]
    heads = [f"heads.{k}.{part}" for k in range(3) for part in ("weight", "bias")]
    expected = divergence_by_torch(method, [*shared, *heads])
    assert divergence_by_torch(method, heads[:4]) == 0  # earlier heads are where they were
    assert divergence_by_torch(method, shared) > 0
    assert method.penalty(third).item() == pytest.approx(expected / len(data.train), rel=1e-4)


def test_the_posterior_of_a_task_is_exactly_the_prior_of_the_next_and_a_new_head_has_a_standard_normal_one():
    stream, _, method, net = prepare()
    learn(stream, method, net, stream.tasks[0])
    named = {name: value.clone() for name, value in net.named_parameters()}
    second = stream.tasks[1]
    method.begin_task(second, stream.load(second))
    for name, (mean, log_variance) in method.prior.items():
        learned = name.startswith(("backbone.", "heads.0."))
        assert torch.equal(mean, named[name] if learned else torch.zeros_like(mean)), name
        assert torch.equal(log_variance, named[f"{name}_spread"] if learned else torch.zeros_like(mean)), name
    own = divergence_by_torch(method, ["heads.1.weight", "heads.1.bias"])
    assert method.penalty(second).item() == pytest.approx(own / method.count, rel=1e-5)


def test_the_prior_does_not_follow_the_weights_in_training():
    stream, _, method, net = prepare()
    learn(stream, method, net, stream.tasks[0])
    before = {name: [t.clone() for t in gaussian] for name, gaussian in method.prior.items()}
    method.begin_task(stream.tasks[1], stream.load(stream.tasks[1]))
    net.train()
    method.train_batch(first_batch(stream, 1), 0.0, method.optimizers(stream.tasks[1], 0.1))
    assert all(torch.equal(a, b) for name in before for a, b in zip(before[name], method.prior[name], strict=True))


def test_a_great_penalty_holds_the_backbone():
    """The pull to the prior grows as 1 / N: one sample against many."""
    moved = []
    for count in (1, 10**9):
        torch.manual_seed(0)
        stream, _, method, net = prepare()
        learn(stream, method, net, stream.tasks[0], epochs=5)
        before, task = net.backbone[1].weight.detach().clone(), stream.tasks[1]
        method.begin_task(task, stream.load(task))
        method.count = count
        optimizers = method.optimizers(task, 0.003)
        net.train()
        for _ in range(100):
            method.train_batch(first_batch(stream, 1), 0.0, optimizers)
        moved.append((net.backbone[1].weight - before).abs().mean().item())
    assert moved[0] < moved[1] / 10


# the likelihood


def test_without_noise_loss_and_scores_are_those_of_the_plain_network():
    stream, plain, method, net = prepare(log_variance=NO_NOISE)
    batch = first_batch(stream)
    net.train()
    scores = plain(batch.x, 0)
    torch.testing.assert_close(method.loss(batch), F.cross_entropy(scores, batch.y))
    torch.testing.assert_close(method.logits(batch.x, batch.task), scores.log_softmax(1))


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_the_training_loss_is_the_mean_over_draws_of_the_cross_entropy(sampling):
    stream, _, method, net = prepare(samples=7, log_variance=-1.0, sampling=sampling)
    batch = first_batch(stream)
    net.train()
    state = torch.get_rng_state()
    draws = [F.cross_entropy(scores, batch.y) for scores in net(batch.x, 0, samples=7)]
    torch.set_rng_state(state)
    assert len(draws) == 7
    torch.testing.assert_close(method.loss(batch), torch.stack(draws).mean())


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_scores_are_the_log_of_the_mean_probability_over_draws(sampling):
    stream, _, method, net = prepare(log_variance=0.0, prediction_samples=3000, sampling=sampling)
    batch = first_batch(stream, size=5)
    with torch.no_grad():
        draws = net(batch.x, 0, samples=3000).softmax(-1)  # others than the method's
        scores = method.logits(batch.x, batch.task)
        means = net(batch.x, 0).softmax(-1)
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(5))
    error = 5 * 2**0.5 * draws.std(0) / 3000**0.5
    assert ((scores.exp() - draws.mean(0)).abs() < error).all()
    assert ((means - draws.mean(0)).abs() > error).any()  # the means alone would say something else


def test_so_many_draws_are_averaged_as_asked_for(monkeypatch):
    stream, _, method, net = prepare(prediction_samples=23)
    batch, drawn = first_batch(stream, size=3), []
    forward = net.forward

    def counted(x, task, samples=0, generator=None):
        drawn.append(samples)
        return forward(x, task, samples, generator)

    monkeypatch.setattr(net, "forward", counted)
    torch.testing.assert_close(method.logits(batch.x, batch.task).exp().sum(1), torch.ones(3))
    assert sum(drawn) == 23


def test_scores_and_validation_are_the_same_whenever_asked_and_draw_nothing_from_the_training_noise():
    stream, _, method, net = prepare(log_variance=-1.0)
    task = stream.tasks[0]
    data = stream.load(task)
    method.begin_task(task, data)
    net.eval()
    batch, state = first_batch(stream), torch.get_rng_state()
    scores = [method.logits(batch.x, task) for _ in range(2)]
    losses = [method.validation_loss([(task, data.valid)], task, 100) for _ in range(2)]
    assert torch.equal(*scores)
    assert losses[0] == losses[1]
    assert torch.equal(torch.get_rng_state(), state)
    net.train()
    assert method.loss(batch) != method.loss(batch)  # in training noise is new each time


def test_validation_is_the_full_criterion_with_one_draw_for_each_batch():
    stream, _, method, net = prepare(log_variance=-1.0)
    task = stream.tasks[0]
    data = stream.load(task)
    method.begin_task(task, data)
    net.eval()
    generator, total = torch.Generator().manual_seed(0), 0.0
    with torch.no_grad():
        for x, y in data.valid.batches(100):
            total += F.cross_entropy(net(x, 0, 1, generator)[0], y, reduction="sum").item()
    expected = total / len(data.valid) + method.penalty(task).item()
    assert method.validation_loss([(task, data.valid)], task, 100) == pytest.approx(expected, rel=1e-5)


# the whole


def test_adam_trains_backbone_and_own_head_only():
    stream, _, method, net = prepare()
    (optimizer,) = method.optimizers(stream.tasks[1], 0.001)
    names = {id(p): name for name, p in net.named_parameters()}
    trained = {names[id(p)] for group in optimizer.param_groups for p in group["params"]}
    assert trained == {name for name in names.values() if name.startswith(("backbone.", "heads.1."))}
    assert isinstance(optimizer, torch.optim.Adam)


def test_pretraining_moves_means_only_and_once():
    stream, _, method, net = prepare(pretrain_epochs=30)
    task = stream.tasks[0]
    data = stream.load(task)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    method.begin_task(task, data)
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"backbone.1.weight", "backbone.1.bias", "heads.0.weight", "heads.0.bias"}
    right = (net(data.train.take(slice(None))[0], 0).argmax(1) == data.train.y).float().mean()
    assert right > 0.95
    learned = {name: value.clone() for name, value in net.state_dict().items()}
    stream, _, other, other_net = prepare(pretrain_epochs=30)
    other.load_state_dict(method.state_dict())
    other_net.load_state_dict(learned)
    other.begin_task(task, data)  # a run that was cut off goes on
    assert all(torch.equal(value, learned[name]) for name, value in other_net.state_dict().items())


@pytest.mark.parametrize("sampling", ["weights", "local"])
def test_a_convolutional_network_learns_and_remembers(sampling):
    backbone = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Flatten(), nn.Linear(128, 32), nn.ReLU(),
    )  # fmt: skip
    stream, _, method, net = prepare(backbone, 32, sampling=sampling, samples=3, prediction_samples=20)
    for task in stream.tasks[:2]:
        learn(stream, method, net, task, epochs=8)
    assert all(accuracy(method, net, task, stream.load(task).test, 500) > 75 for task in stream.tasks[:2])


def test_what_is_kept_beside_the_network_is_variances_and_a_prior():
    _, plain, method, _ = prepare()
    assert method.extra_bytes() == 3 * 4 * sum(p.numel() for p in plain.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "method.samples must be at least 1, got 0"),
        ({"prediction_samples": 0}, "method.prediction_samples must be at least 1, got 0"),
        ({"momentum": 0.9}, "method.momentum must be 0, got 0.9; vcl trains with Adam"),
        ({"sampling": "other"}, "method.sampling must be weights or local, got 'other'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prepare(**options)


def test_a_network_with_batch_norm_is_refused():
    with pytest.raises(ValueError, match=r"must be Linear or Conv2d, got a BatchNorm1d at 'backbone\.1'"):
        prepare(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 16)))
