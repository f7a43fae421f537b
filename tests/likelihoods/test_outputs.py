"""What forward may return, and what it may not."""

from dataclasses import dataclass

import pytest
import torch

from bitfreeze.likelihoods import Categorical, Gaussian
from bitfreeze.likelihoods.outputs import as_likelihood


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@dataclass
class Output:
    logits: torch.Tensor
    loss: float = 0.0


def test_outputs_that_are_understood():
    logits = torch.randn(4, 2, 3)
    for output in (logits, logits[:, 0], Output(logits), Categorical(logits)):
        assert isinstance(as_likelihood(output), Categorical)
    gaussian = Gaussian(torch.randn(4))
    assert as_likelihood(gaussian) is gaussian


@pytest.mark.parametrize("shape", [(0, 3), (0, 4, 3)])
def test_a_batch_may_be_empty(shape):
    assert as_likelihood(torch.randn(shape)).rows == 0


@pytest.mark.parametrize(
    ("output", "error", "sentence"),
    [
        (torch.randn(4, 1), ValueError, "one yes/no logit return Bernoulli"),
        (Output(torch.randn(4, 1)), ValueError, "real-valued output Gaussian"),
        (torch.randn(4), ValueError, r"logits must have the shape \[n, C\] .* got \[4\]"),
        (torch.randn(()), ValueError, r"logits must have the shape \[n, C\]"),
        (torch.randn(4, 2, 2, 3), ValueError, "return Categorical"),
        ((torch.randn(4, 3),), TypeError, "must return class logits .* got tuple"),
        ({"logits": torch.randn(4, 3)}, TypeError, "must return class logits .* got dict"),
        (None, TypeError, "must return class logits .* got NoneType"),
    ],
)
def test_outputs_that_are_refused(output, error, sentence):
    with pytest.raises(error, match=sentence):
        as_likelihood(output)


def test_distributions_of_torch_are_taken_only_where_logits_are_classes():
    logits = torch.randn(4, 3)
    torch.testing.assert_close(
        as_likelihood(torch.distributions.Categorical(logits=logits)).log_p, logits.log_softmax(-1)
    )
    with pytest.raises(TypeError, match=r"one of bitfreeze\.likelihoods, got Bernoulli"):
        as_likelihood(torch.distributions.Bernoulli(logits=logits))
