"""Likelihoods at a temperature against autograd by hand and closed forms."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP, Rules, diagonal_fisher
from bitfreeze.likelihoods import Bernoulli, Categorical, Gaussian, Product
from bitfreeze.likelihoods.outputs import as_likelihood
from bitfreeze.likelihoods.softening import soften

TEMPERATURES = [0.5, 2.0, 7.0]


def doubles(*shape: int, scale: float = 3.0) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return (scale * torch.randn(*shape, generator=draw, dtype=torch.float64)).requires_grad_()


def gradient(value: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(value.sum(), of, retain_graph=True)[0]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 4)])
def test_the_gradient_of_softened_classes(temperature: float, shape: tuple[int, ...]) -> None:
    z = doubles(*shape)
    labels = torch.randint(4, shape[:-1], generator=torch.Generator().manual_seed(1))
    soft = soften(Categorical(z), temperature)
    by_hand = temperature * F.log_softmax(z / temperature, -1).gather(-1, labels[..., None]).squeeze(-1)
    torch.testing.assert_close(soft.log_prob(labels), by_hand.reshape(shape[0], -1).sum(1))
    found = gradient(soft.log_prob(labels), z)
    torch.testing.assert_close(found, gradient(by_hand, z))
    torch.testing.assert_close(found, (F.one_hot(labels, 4) - F.softmax(z / temperature, -1)).detach())
    assert not torch.allclose(found, gradient(Categorical(z).log_prob(labels), z), rtol=0.01)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_gradient_of_softened_yes_and_no(temperature: float) -> None:
    z, labels = doubles(6), torch.tensor([0, 1, 1, 0, 1, 0])
    found = gradient(soften(Bernoulli(z), temperature).log_prob(labels), z)
    by_hand = temperature * torch.where(labels > 0, F.logsigmoid(z / temperature), F.logsigmoid(-z / temperature))
    torch.testing.assert_close(found, gradient(by_hand, z))
    torch.testing.assert_close(found, (labels - torch.sigmoid(z / temperature)).detach())


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_support_adds_up_to_the_expectation_over_softened_labels(temperature: float) -> None:
    z, y = doubles(3, 2, 3), doubles(3, 2)
    for likelihood, values, labels in (
        (Categorical(z), z, itertools.product(range(3), repeat=2)),
        (Bernoulli(y), y, itertools.product(range(2), repeat=2)),
    ):
        soft, expected = soften(likelihood, temperature), torch.zeros_like(values)
        for both in labels:
            log_p = soft.log_prob(torch.tensor(both).expand(3, 2))
            p = (log_p / temperature).exp().detach()
            expected += p.reshape(3, *[1] * (values.ndim - 1)) * gradient(log_p, values).square()
        found = sum(gradient(soft.support(k), values).square() for k in range(soft.support_size))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_labels_are_drawn_from_softened_probabilities(temperature: float) -> None:
    z, noise = doubles(1, 4), (torch.arange(10_000) + 0.5).double() / 10_000
    drawn = soften(Categorical(z.expand(10_000, 4)), temperature).sample(noise)
    shares = torch.bincount(drawn, minlength=4) / 10_000
    torch.testing.assert_close(shares.double(), F.softmax(z[0] / temperature, -1).detach(), rtol=0, atol=2e-4)


def test_masks_counts_and_answers_stay() -> None:
    z, mask = doubles(3, 2, 4), torch.tensor([[1, 1], [1, 0], [0, 0]])
    plain, soft = Categorical(z, mask), soften(Categorical(z, mask), 3.0)
    labels = z.argmax(-1)
    labels[0, 0] = (labels[0, 0] + 1) % 4
    assert soft.predictions(3) == plain.predictions(3) == 3
    assert soft.correct(labels, 3) == plain.correct(labels, 3) == (2, 3, 3 / 4)
    assert not gradient(soft.log_prob(labels), z)[mask == 0].any()
    assert torch.equal(soft.unlikely(), plain.unlikely())
    with pytest.raises(ValueError, match="class numbers from 0 to 3"):
        soft.require_labels(labels + 4)


def test_parts_are_softened_and_real_outputs_are_left_alone() -> None:
    z, mean = doubles(4, 3), doubles(4)
    gaussian = Gaussian(mean, scale=0.3)
    assert soften(gaussian, 5.0) is gaussian
    soft = soften(Product([Categorical(z), gaussian]), 5.0)
    assert isinstance(soft, Product)
    assert soft.parts[1] is gaussian
    labels = torch.tensor([0, 1, 2, 0]), torch.zeros(4, dtype=torch.float64)
    alone = soften(Categorical(z), 5.0).log_prob(labels[0]) + gaussian.log_prob(labels[1])
    torch.testing.assert_close(soft.log_prob(labels), alone)


@pytest.mark.parametrize("make", [lambda: Categorical(doubles(4, 3)), lambda: Bernoulli(doubles(4))])
def test_a_temperature_of_1_is_the_identity(make) -> None:
    for likelihood in (make(), Product([make()])):
        assert soften(likelihood, 1) is likelihood


@pytest.mark.parametrize("temperature", [1.0, *TEMPERATURES])
def test_the_exact_fisher_of_two_softened_classes(temperature: float) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2, bias=False).double(), 4 * torch.randn(9, 3).double()
    p = F.softmax(model(x) / temperature, -1)[:, 0].detach()
    truth = ((p * (1 - p))[:, None] * x.square()).mean(0).expand(2, 3)
    found = diagonal_fisher(model, [x], lambda x: soften(as_likelihood(model(x)), temperature), labels="exact")
    torch.testing.assert_close(found["weight"], truth)
    rules = Rules.directions(temperature=temperature, damping=0.0)
    blip = BLIP(model, rules=rules)
    blip.consolidate([x], labels="exact")
    along = blip.state_dict()["directions"]["weight"]["fisher"]
    torch.testing.assert_close(along.sum(), truth.sum())  # a trace, which no turn changes
