"""Labels that come with the data, in batches of every kind."""

from collections import UserDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import distributions, nn

from bitfreeze import diagonal_fisher
from bitfreeze.fisher import estimate
from bitfreeze.likelihoods import Categorical, Gaussian, Likelihood, Product
from support.networks import WIDTH, TwoHeads, inputs, network
from support.truth import assert_matches, empirical_fisher, mean_over, reference, squares

N = 5


class Batch(UserDict):
    """Dict-like, with items as attributes, as the batches of text libraries are."""

    def __getattr__(self, name):
        return self.data[name]


@dataclass
class Output:
    logits: torch.Tensor


@pytest.mark.parametrize(
    "wrap", [dict, Batch, lambda b: [b], lambda b: (b,)], ids=["dict", "UserDict", "list of one", "tuple of one"]
)
def test_targets_find_labels_in_a_batch(wrap):
    model, x, y = network(3), inputs(), torch.randint(3, (N,))

    def forward(batch):
        return Output(model(batch["x"]))

    def targets(batch):
        return (batch[0] if isinstance(batch, list | tuple) else batch)["y"]

    batches = [wrap({"x": x[rows], "y": y[rows], "name": "text"}) for rows in (slice(0, 3), slice(3, N))]
    result = estimate(model, batches, forward, labels="true", targets=targets)
    assert_matches(result.values, empirical_fisher(model, x, y))


def test_dict_like_batch_keeps_its_type_in_a_fallback():
    model, x, y = network(3), inputs(), torch.randint(3, (N,))
    scale = nn.Parameter(torch.rand(WIDTH, dtype=torch.float64) + 0.5)
    model.register_parameter("scale", scale)

    def forward(batch):
        return model(batch.x * model.scale)

    result = estimate(model, [Batch(x=x, y=y)], forward, labels="true", targets=lambda batch: batch.y)
    twin, parameters = reference(model)
    expected = mean_over(
        range(N), lambda i: squares(parameters, twin(x[i : i + 1] * twin.scale).log_softmax(-1)[0, y[i]])
    )
    assert_matches(result.values, expected)
    assert result.ways["scale"].startswith("torch.func (")


def test_labels_below_zero_are_ignored():
    model, x = network(3, 2), inputs()
    y = torch.randint(2, (N, 3))
    y[0, 1:], y[2] = -100, -1
    result = estimate(model, [(x, y)], lambda x: model(x).unflatten(1, (3, 2)), labels="true")

    def score(twin, x, y):
        return -nn.functional.cross_entropy(twin(x).view(3, 2), y[0].where(y[0] >= 0, -100), reduction="sum")

    twin, parameters = reference(model)
    rows = [i for i in range(N) if i != 2]
    part = mean_over(rows, lambda i: squares(parameters, score(twin, x[i : i + 1], y[i : i + 1])))
    assert_matches(result.values, {name: value * len(rows) / N for name, value in part.items()})
    assert result.samples == N


def test_true_labels_of_several_heads():
    model, x = TwoHeads(), inputs()
    y = torch.randint(3, (N,)), torch.randn(N, dtype=torch.float64)

    def forward(x):
        logits, value = model(x)
        return Product([Categorical(logits), Gaussian(value, 0.5)])

    twin, parameters = reference(model)

    def one(i):
        logits, value = twin(x[i : i + 1])
        log_p = logits.log_softmax(-1)[0, y[0][i]] + distributions.Normal(value[0, 0], 0.5).log_prob(y[1][i])
        return squares(parameters, log_p)

    assert_matches(diagonal_fisher(model, [(x, y)], forward, labels="true"), mean_over(range(N), one))


class Counts(Likelihood):
    """A likelihood of the user's: one Poisson count a sample. Its Fisher for the log of the rate is the rate."""

    def __init__(self, log_rate):
        self.log_rate, self.rows, self.noise_shape, self.support_size = log_rate, len(log_rate), log_rate.shape, 1

    def sample(self, noise):
        steps = distributions.Poisson(self.log_rate.detach().exp()[:, None]).log_prob(torch.arange(40.0)).exp()
        return (steps.cumsum(1) < noise[:, None]).sum(1)

    def log_prob(self, labels):
        return labels * self.log_rate - self.log_rate.exp()

    def unlikely(self):
        return self.log_rate.detach().exp() + 3

    def support(self, k):
        return self.log_rate.detach().mul(0.5).exp() * self.log_rate


def test_likelihood_of_the_users_own():
    model, x = network(1), inputs()

    def forward(x):
        return Counts(model(x).squeeze(1))

    exact = estimate(model, [x], forward, labels="exact")
    twin, parameters = reference(model)

    def one(i):
        log_rate = twin(x[i : i + 1]).squeeze()
        return {name: g * log_rate.detach().exp() for name, g in squares(parameters, log_rate).items()}

    assert_matches(exact.values, mean_over(range(N), one))
    many = estimate(model, [x.repeat(3000, 1)], forward, generator=torch.Generator().manual_seed(0))
    assert_matches(many.values, exact.values, 0.1)
    assert many.ways["0.weight"] == "rule Linear.weight"


def test_labels_of_the_data_are_not_used_unless_asked_for():
    model, x = network(3), inputs()
    one, other = (
        diagonal_fisher(model, [(x, y)], generator=torch.Generator().manual_seed(0))
        for y in (torch.zeros(N, dtype=torch.long), torch.full((N,), 2))
    )
    assert_matches(one, other, 0)


def test_labels_as_a_list_or_an_array_and_a_label_too_many():
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    y = [0, 1, 2, 1, 0]
    expected = diagonal_fisher(model, [(x, torch.tensor(y))], labels="true")
    for given in (y, np.array(y)):
        assert_matches(diagonal_fisher(model, [(x, given)], labels="true"), expected, 1e-12)
    with pytest.raises(ValueError, match="class numbers from 0 to 2, got 3"):
        diagonal_fisher(model, [(x, [0, 1, 3, 1, 0])], labels="true")
