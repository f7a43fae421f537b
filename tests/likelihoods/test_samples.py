"""Labels drawn from a model have its frequencies, and are never ones that it rules out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.likelihoods import Bernoulli, Categorical, Gaussian, Product

INF = float("inf")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def grid(n):
    """n evenly spaced numbers in (0, 1): noise whose draws have the exact frequencies, up to 1/n."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def test_categorical_samples_have_the_frequencies_of_the_model():
    p = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0], dtype=torch.float64)
    n = 10_000
    labels = Categorical(p.log().expand(n, 6)).sample(grid(n))
    torch.testing.assert_close(labels.bincount(minlength=6) / n, p.float(), rtol=0, atol=1.5 / n)


def test_categorical_samples_pass_a_chi_square_test():
    n, logits = 20_000, torch.randn(8)
    noise = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    counts = Categorical(logits.expand(n, 8)).sample(noise).bincount(minlength=8)
    expected = n * logits.softmax(0)
    assert ((counts - expected) ** 2 / expected).sum() < 24.3  # 0.999 quantile for 7 degrees of freedom


@given(
    st.lists(st.sampled_from([-INF, -200.0, -30.0, -1e-3, 0.0, 0.1, 3.0, 50.0]), min_size=2, max_size=12).filter(
        lambda logits: max(logits) > -INF
    ),
    st.sampled_from([0.0, 2.0**-60, 0.25, 0.5, 1 - 2.0**-24, 1 - 2.0**-53]) | st.floats(0, 1, exclude_max=True),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_categorical_never_draws_an_impossible_class(logits, noise, dtype):
    likelihood = Categorical(torch.tensor([logits], dtype=dtype))
    label = likelihood.sample(torch.tensor([noise], dtype=torch.float64))
    assert label.shape == (1,)
    assert logits[label.item()] > -INF
    assert likelihood.log_prob(label).isfinite()


def test_probabilities_that_add_up_to_less_than_one_draw_no_impossible_class():
    """In float32 they do, by rounding: the largest noise must not slip past the last possible class."""
    logits = torch.cat([torch.randn(50, 1000), torch.full((50, 3), -INF)], 1)
    assert (Categorical(logits).log_p.double().exp().sum(-1) < 1 - 1e-9).any()
    assert Categorical(logits).sample(torch.full((50,), 1 - 2.0**-53, dtype=torch.float64)).max() < 1000


def test_bernoulli_samples_have_the_frequencies_of_the_model():
    n = 10_000
    labels = Bernoulli(torch.tensor([-2.0, 0.0, 3.0]).expand(n, 3)).sample(grid(n)[:, None].expand(n, 3))
    assert set(labels.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(labels.mean(0), torch.tensor([-2.0, 0.0, 3.0]).sigmoid(), rtol=0, atol=1.5 / n)


def test_gaussian_samples_have_mean_and_deviation_of_the_model():
    n = 10_000
    labels = Gaussian(torch.full((n,), 3.0, dtype=torch.float64), 0.5).sample(grid(n))
    torch.testing.assert_close(labels.mean(), torch.tensor(3.0, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(labels.std(), torch.tensor(0.5, dtype=torch.float64), rtol=1e-3, atol=0)
    assert Gaussian(torch.zeros(1)).sample(torch.zeros(1, dtype=torch.float64)).isfinite().all()


def test_samples_fit_log_prob():
    both = Product([Categorical(torch.randn(3, 2, 4)), Bernoulli(torch.randn(3)), Gaussian(torch.randn(3, 2))])
    labels = both.sample(tuple(torch.rand(shape, dtype=torch.float64) for shape in both.noise_shape))
    assert both.log_prob(labels).shape == (3,)
    assert both.log_prob(labels).isfinite().all()
