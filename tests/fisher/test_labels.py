"""Labels drawn and averaged over: against enumeration, quadrature and closed forms."""

import itertools
from functools import reduce

import numpy as np
import pytest
import torch
from torch import distributions, nn

from bitfreeze import diagonal_fisher
from bitfreeze.fisher import estimate
from bitfreeze.likelihoods import Bernoulli, Categorical, Gaussian, Product
from support.networks import WIDTH, TwoHeads, inputs, network
from support.truth import assert_matches, mean_over, randomise, reference, squares

N = 5


# Outcomes of one sample, as (log p(y), p(y)), from torch.distributions


def of_classes(logits, mask=None):
    """All label sequences: logits [l, C]."""
    log_p = logits.log_softmax(-1)
    for label in itertools.product(range(logits.shape[-1]), repeat=len(logits)):
        each = torch.stack([log_p[position, c] for position, c in enumerate(label)])
        yield (each if mask is None else each * mask).sum(), each.sum().exp()


def of_bits(logits):
    for label in itertools.product([0.0, 1.0], repeat=len(logits)):
        log_p = distributions.Bernoulli(logits=logits).log_prob(logits.new_tensor(label)).sum()
        yield log_p, log_p.exp()


def of_reals(mean, scale):
    """Squared scores are polynomials of degree 4 in y: eight nodes of Gauss-Hermite quadrature are exact."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    for point in itertools.product(range(8), repeat=len(mean)):
        y = mean.detach() + scale.detach() * mean.new_tensor(nodes[list(point)])
        weight = mean.new_tensor(np.prod(weights[list(point)] / weights.sum()))
        yield distributions.Normal(mean, scale).log_prob(y).sum(), weight


def of_all(*parts):
    for outcomes in itertools.product(*(list(part) for part in parts)):
        yield sum(log_p for log_p, _ in outcomes), reduce(torch.mul, [weight for _, weight in outcomes])


class WithScale(nn.Module):
    """Mean and deviation of two outputs, the deviation learned: per sample, or one for all."""

    def __init__(self, shared):
        super().__init__()
        self.mean, self.shared = nn.Linear(WIDTH, 2), shared
        self.log_scale = nn.Parameter(torch.zeros(2)) if shared else nn.Linear(WIDTH, 2)
        randomise(self).double()

    def forward(self, x):
        log_scale = self.log_scale.expand(len(x), 2) if self.shared else self.log_scale(x)
        return self.mean(x), log_scale.exp()


MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]], dtype=torch.float64)

# model, likelihood of its output, outcomes of sample i given its output
EXACT = {
    "classes": (lambda: network(3), lambda out: out, lambda out, i: of_classes(out)),
    "sequences": (
        lambda: network(3, 2),
        lambda out: out.unflatten(1, (3, 2)),
        lambda out, i: of_classes(out.view(3, 2)),
    ),
    "masked-sequences": (
        lambda: network(3, 2),
        lambda out: Categorical(out.unflatten(1, (3, 2)), MASK[: len(out)]),
        lambda out, i: of_classes(out.view(3, 2), MASK[i]),
    ),
    "binary": (lambda: network(1), lambda out: Bernoulli(out.squeeze(1)), lambda out, i: of_bits(out[0])),
    "multi-label": (lambda: network(3), Bernoulli, lambda out, i: of_bits(out[0])),
    "regression": (
        lambda: network(2),
        lambda out: Gaussian(out, 0.7),
        lambda out, i: of_reals(out[0], torch.full((2,), 0.7, dtype=torch.float64)),
    ),
    "learned-scale": (
        lambda: WithScale(shared=False),
        lambda out: Gaussian(*out),
        lambda out, i: of_reals(out[0][0], out[1][0]),
    ),
    "shared-learned-scale": (
        lambda: WithScale(shared=True),
        lambda out: Gaussian(*out),
        lambda out, i: of_reals(out[0][0], out[1][0]),
    ),
    "two-heads": (
        TwoHeads,
        lambda out: Product([Categorical(out[0]), Gaussian(out[1], 0.5)]),
        lambda out, i: of_all(of_classes(out[0]), of_reals(out[1][0], torch.full((1,), 0.5, dtype=torch.float64))),
    ),
}


def exact_truth(model, x, outcomes):
    """Mean over samples of the sum over labels of p(y) times the squared gradient of log p(y)."""
    twin, parameters = reference(model)

    def one(i):
        parts = [(squares(parameters, log_p), weight.detach()) for log_p, weight in outcomes(twin(x[i : i + 1]), i)]
        return {name: sum(weight * part[name] for part, weight in parts) for name in parameters}

    return mean_over(range(len(x)), one)


@pytest.mark.parametrize("case", EXACT)
def test_exact_is_the_expectation_over_all_labels(case):
    make, likelihood, outcomes = EXACT[case]
    model, x = make(), inputs()
    result = estimate(model, [x], lambda x: likelihood(model(x)), labels="exact")
    assert_matches(result.values, exact_truth(model, x, outcomes))
    assert result.samples == N


@pytest.mark.parametrize("case", [case for case in EXACT if case != "masked-sequences"])
def test_sampled_labels_converge_to_the_expectation(case):
    make, likelihood, _ = EXACT[case]
    model, x = make(), inputs(3)

    def forward(x):
        return likelihood(model(x))

    exact = diagonal_fisher(model, [x], forward, labels="exact")
    repeats = 3000
    sampled = diagonal_fisher(
        model, [x.repeat(repeats, 1)], forward, labels="sample", generator=torch.Generator().manual_seed(0)
    )
    assert_matches(sampled, exact, 0.1)
    assert any((sampled[name] - exact[name]).abs().max() > 1e-6 * exact[name].max() for name in exact)


# Closed forms


def test_logistic_regression():
    """E[g^2] = x^2 p (1 - p)."""
    model, x = randomise(nn.Linear(WIDTH, 1)).double(), inputs()
    values = diagonal_fisher(model, [x], lambda x: Bernoulli(model(x).squeeze(1)), labels="exact")
    p = torch.sigmoid(model(x)).detach()
    expected = {"weight": (x.square() * p * (1 - p)).mean(0, keepdim=True), "bias": (p * (1 - p)).mean(0)}
    assert_matches(values, expected, 1e-12)


def test_softmax_regression():
    """For class c: x^2 p_c (1 - p_c)."""
    model, x = randomise(nn.Linear(WIDTH, 3)).double(), inputs()
    p = model(x).softmax(-1).detach()
    expected = {"weight": (p * (1 - p)).T @ x.square() / N, "bias": (p * (1 - p)).mean(0)}
    assert_matches(diagonal_fisher(model, [x], labels="exact"), expected, 1e-12)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 3.0])
def test_linear_regression(sigma):
    """x^2 / sigma^2."""
    model, x = randomise(nn.Linear(WIDTH, 2)).double(), inputs()
    values = diagonal_fisher(model, [x], lambda x: Gaussian(model(x), sigma), labels="exact")
    expected = {"weight": x.square().mean(0).expand(2, WIDTH), "bias": torch.ones(2, dtype=torch.float64)}
    assert_matches(values, {name: value / sigma**2 for name, value in expected.items()}, 1e-12)
