"""Likelihoods against torch.distributions, enumeration and closed forms."""

import itertools

import pytest
import torch
from torch import distributions

from bitfreeze.likelihoods import Bernoulli, Categorical, Gaussian, Product

INF = float("inf")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def summed_squares(likelihood, values):
    """What labels='exact' adds up: squared gradients of the support's scores, one row for each sample."""
    total = torch.zeros_like(values)
    for k in range(likelihood.support_size):
        (gradient,) = torch.autograd.grad(likelihood.support(k).sum(), values, retain_graph=True, allow_unused=True)
        total += 0 if gradient is None else gradient.square()
    return total


def expected_squares(values, outcomes):
    """Sum over labels of p(y) times the squared gradient of log p(y): outcomes yield (log p, weight) per sample."""
    total = torch.zeros_like(values)
    for log_p, weight in outcomes:
        (gradient,) = torch.autograd.grad(log_p.sum(), values, retain_graph=True)
        total += gradient.square() * weight.detach().reshape(-1, *[1] * (values.ndim - 1))
    return total


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


# log_prob


@pytest.mark.parametrize("shape", [(6, 3), (4, 5, 3), (2, 3, 2, 4)])
def test_categorical_log_prob(shape):
    logits, labels = torch.randn(shape), torch.randint(shape[-1], shape[:-1])
    expected = distributions.Categorical(logits=logits).log_prob(labels).reshape(shape[0], -1).sum(1)
    torch.testing.assert_close(Categorical(logits).log_prob(labels), expected)


def test_categorical_counts_neither_masked_nor_negative_labels():
    logits, labels = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    labels[1, 2] = -100
    each = distributions.Categorical(logits=logits).log_prob(labels.clamp(min=0))
    counted = mask * torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]])
    for given_mask in (mask, mask.bool(), mask.float()):
        torch.testing.assert_close(Categorical(logits, given_mask).log_prob(labels), (each * counted).sum(1))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (5, 3), (3, 2, 4)])
def test_bernoulli_log_prob(shape):
    logits, labels = torch.randn(shape), torch.randint(2, shape)
    expected = distributions.Bernoulli(logits=logits).log_prob(labels.float()).reshape(shape[0], -1).sum(1)
    torch.testing.assert_close(Bernoulli(logits).log_prob(labels), expected)


@pytest.mark.parametrize("scale", [1.0, 0.3, torch.rand(4) + 0.5])
def test_gaussian_log_prob_up_to_a_constant(scale):
    mean, labels = torch.randn(5, 4), torch.randn(2, 5, 4)
    expected = distributions.Normal(mean, scale).log_prob(labels).sum(-1)
    found = torch.stack([Gaussian(mean, scale).log_prob(y) for y in labels])
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1])
    torch.testing.assert_close(found[0] - found[1], expected[0] - expected[1])


@pytest.mark.parametrize("kind", [Bernoulli, Gaussian])
def test_masked_outputs_do_not_count(kind):
    values, labels = torch.randn(3, 4), torch.randint(2, (3, 4)).float()
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    masked = kind(values, mask=mask)
    short = kind(values[:1, :2]).log_prob(labels[:1, :2])
    torch.testing.assert_close(
        masked.log_prob(labels), torch.cat([short, kind(values[1:2]).log_prob(labels[1:2]), torch.zeros(1)])
    )
    assert all(not masked.support(k)[2] for k in range(masked.support_size))


def test_product_adds_log_probs():
    parts = [Categorical(torch.randn(4, 3)), Bernoulli(torch.randn(4)), Gaussian(torch.randn(4, 2))]
    labels = [torch.randint(3, (4,)), torch.randint(2, (4,)), torch.randn(4, 2)]
    expected = sum(part.log_prob(y) for part, y in zip(parts, labels, strict=True))
    torch.testing.assert_close(Product(parts).log_prob(tuple(labels)), expected)
    torch.testing.assert_close(Product(parts).log_prob(labels), expected)


# support: its squared gradients are the expectation over all labels


def test_categorical_support_is_the_expectation_over_joint_labels():
    """All 3^3 label sequences are enumerated: that cross terms between positions vanish is shown, not assumed."""
    logits = doubles(4, 3, 3)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
    log_p = logits.log_softmax(-1)

    def outcomes():
        for label in itertools.product(range(3), repeat=3):
            each = torch.stack([log_p[:, t, c] for t, c in enumerate(label)], 1)
            yield (each * mask).sum(1), each.sum(1).exp()

    found = summed_squares(Categorical(logits, mask), logits)
    torch.testing.assert_close(found, expected_squares(logits, outcomes()))
    assert found[0].all()
    assert not found[3].any()


def test_categorical_support_closed_form():
    logits = doubles(5, 4)
    p = logits.softmax(-1).detach()
    torch.testing.assert_close(summed_squares(Categorical(logits), logits), p * (1 - p))


def test_categorical_support_with_impossible_classes():
    """Classes that are ruled out by a logit of -inf, as masked actions are."""
    possible = doubles(3, 2)
    logits = torch.cat([possible[:, :1], torch.full((3, 1), -INF, dtype=torch.float64), possible[:, 1:]], 1)
    likelihood = Categorical(logits)
    assert all(likelihood.support(k).isfinite().all() for k in range(3))
    p = possible.softmax(-1).detach()
    torch.testing.assert_close(summed_squares(likelihood, possible), p * (1 - p))


def test_bernoulli_support_is_the_expectation_over_joint_labels():
    logits = doubles(4, 3)
    ones = distributions.Bernoulli(logits=logits)

    def outcomes():
        for label in itertools.product([0.0, 1.0], repeat=3):
            log_p = ones.log_prob(torch.tensor(label, dtype=torch.float64).expand(4, 3)).sum(1)
            yield log_p, log_p.exp()

    torch.testing.assert_close(summed_squares(Bernoulli(logits), logits), expected_squares(logits, outcomes()))


@pytest.mark.parametrize("logit", [0.0, 5.0, 20.0, -20.0, 40.0])
def test_bernoulli_support_of_a_confident_network(logit):
    """p (1 - p) is small where p rounds to 1, but not zero: its logarithm is what becomes bits."""
    z = torch.tensor([logit], requires_grad=True)
    p = torch.sigmoid(torch.tensor(-abs(logit), dtype=torch.float64))
    torch.testing.assert_close(summed_squares(Bernoulli(z), z).double()[0], p * (1 - p), rtol=1e-5, atol=0)


def test_gaussian_support_closed_form():
    """The Fisher of a normal distribution is 1 / sigma^2 for its mean and 2 / sigma^2 for its deviation."""
    mean, scale = doubles(4, 3), (torch.rand(4, 3, dtype=torch.float64) + 0.5).requires_grad_()
    likelihood = Gaussian(mean, scale)
    assert likelihood.support_size == 6
    torch.testing.assert_close(summed_squares(likelihood, mean), scale.detach() ** -2)
    torch.testing.assert_close(summed_squares(likelihood, scale), 2 * scale.detach() ** -2)
    assert Gaussian(mean, 0.5).support_size == 3
    torch.testing.assert_close(summed_squares(Gaussian(mean, 0.5), mean), torch.full_like(mean, 4.0))


def test_product_support_is_that_of_its_parts():
    logits, z, mean = doubles(4, 3), doubles(4, 2), doubles(4)
    parts = Categorical(logits), Bernoulli(z), Gaussian(mean, 2.0)
    both = Product(parts)
    assert both.support_size == 3 + 2 + 1
    for part, values in zip(parts, (logits, z, mean), strict=True):
        torch.testing.assert_close(summed_squares(both, values), summed_squares(part, values))
    with pytest.raises(IndexError):
        both.support(6)


@pytest.mark.parametrize("confidence", [1.0, 30.0, 1e4])
def test_unlikely_labels_leave_a_gradient(confidence):
    """However sure the model is, and never by a label that it rules out."""
    logits = (torch.randn(6, 4) * confidence).requires_grad_()
    ruled_out = torch.cat([logits, torch.full((6, 1), -INF)], 1)
    for likelihood in (
        Categorical(logits),
        Categorical(logits[:, None]),
        Categorical(ruled_out),
        Bernoulli(logits),
        Gaussian(logits, 1e-3),
        Product([Categorical(logits), Bernoulli(logits)]),
    ):
        log_p = likelihood.log_prob(likelihood.unlikely())
        assert log_p.isfinite().all()
        (gradient,) = torch.autograd.grad(log_p.sum(), logits)
        assert gradient.abs().amax(1).min() > 0.1


# what does not fit


@pytest.mark.parametrize("shape", [(0, 3), (0, 4, 3)])
def test_a_batch_may_be_empty(shape):
    assert Categorical(torch.randn(shape)).rows == 0
    assert Bernoulli(torch.randn(shape)).rows == 0
    assert Gaussian(torch.randn(shape)).rows == 0


def pair():
    return Product([Gaussian(torch.randn(3)), Bernoulli(torch.randn(3))])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Categorical(torch.randn(4, 3), torch.ones(4, 3)), r"mask must have the shape \[4\]"),
        (lambda: Bernoulli(torch.randn(4, 3), torch.ones(4)), r"mask must have the shape \[4, 3\]"),
        (lambda: Gaussian(torch.tensor(0.0)), "no sample axis"),
        (
            lambda: Categorical(torch.randn(4, 3)).log_prob(torch.zeros(4, 1)),
            r"labels must have the shape \[4\], .* got \[4, 1\]",
        ),
        (lambda: Product([]), r"at least one likelihood, .* got \[\] samples"),
        (
            lambda: Product([Bernoulli(torch.randn(3)), Bernoulli(torch.randn(4))]),
            r"the same samples, got \[3, 4\] samples",
        ),
        (lambda: Product([Bernoulli(torch.randn(3))]).log_prob(torch.zeros(3)), "a tuple or list of 1 items"),
        (lambda: pair().require_labels((torch.zeros(3),)), "a tuple or list of 2 items"),
        (lambda: pair().require_labels((torch.zeros(3), torch.zeros(3), torch.zeros(3))), "a tuple or list of 2 items"),
        (lambda: pair().require_labels((torch.zeros(3), torch.tensor([0, 2, 1]))), "labels must be 0 or 1, got 2"),
        (lambda: Bernoulli(torch.randn(2)).require_labels(torch.tensor([-1, 1])), "labels must be 0 or 1, got -1"),
        (lambda: Bernoulli(torch.randn(2)).require_labels(torch.tensor([0.5, 1])), r"labels must be 0 or 1, got 0\.5"),
        (lambda: Bernoulli(torch.randn(2)).require_labels(torch.tensor([1, torch.nan])), "must be 0 or 1, got nan"),
        (lambda: Bernoulli(torch.randn(4, 3)).require_labels(torch.zeros(3, 4)), r"shape \[4, 3\] of the outputs"),
        (
            lambda: Bernoulli(torch.randn(4, 3)).log_prob(torch.zeros(3, 4)),
            r"shape \[4, 3\] of the outputs, got \[3, 4\]",
        ),
        (
            lambda: Gaussian(torch.randn(4, 3)).log_prob(torch.zeros(3, 4)),
            r"shape \[4, 3\] of the outputs, got \[3, 4\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("labels", [torch.tensor([[0, 1]]), torch.tensor([[True, False]]), torch.tensor([[0.0, 1.0]])])
def test_labels_of_any_dtype_may_be_0_or_1_and_anything_at_padding(labels):
    logits, mask = torch.randn(1, 2), torch.tensor([[True, False]])
    Bernoulli(logits).require_labels(labels)
    Bernoulli(logits, mask).require_labels(torch.tensor([[1, -100]]))
    Product([Bernoulli(logits), Gaussian(torch.zeros(1))]).require_labels((labels, torch.tensor([7.0])))
