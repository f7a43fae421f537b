"""The paper's lemma in numbers: Shannon entropy of Q(X, N), differential entropy of X, and the information gain.

Q of Eq. 2 has the step 2^-N, so that the constant is N (the paper, with bins of 2^-(N-1), has N - 1). It cancels in
the gain.
"""

import math

import pytest
import torch
from torch import Tensor

from bitfreeze import bits, information_gain, quantize


def shannon(samples: Tensor) -> float:
    _, counts = samples.unique(return_counts=True)
    p = counts.double() / len(samples)
    return -(p * p.log2()).sum().item()


def gaussian(mean: float, deviation: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + deviation * torch.randn(1_000_000, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(("n", "deviation"), [(6, 0.1), (8, 0.02), (8, 0.15), (10, 0.01)])
def test_shannon_entropy_is_differential_entropy_plus_n(n: int, deviation: float) -> None:
    h = 0.5 * math.log(2 * math.pi * math.e * deviation**2)
    found = shannon(quantize(gaussian(0.2, deviation, seed=n), n))
    assert found == pytest.approx(h / math.log(2) + n, abs=0.01)


@pytest.mark.parametrize("t", [1, 2, 5])
def test_the_gain_of_eq8_is_the_drop_of_entropy_between_two_posteriors(t: int) -> None:
    m, n = 100, 12
    old, new = torch.tensor(4.0, dtype=torch.float64), torch.tensor(90.0, dtype=torch.float64)
    precisions = (m * t * old, m * (t + 1) * bits.accumulate_fisher(new, old, t))
    gain = information_gain(new, old, t, "eq8").item()
    exact = [0.5 * math.log2(2 * math.pi * math.e / p.item()) for p in precisions]
    assert gain == pytest.approx(exact[0] - exact[1], rel=1e-12)
    found = [shannon(quantize(gaussian(0.1, p.item() ** -0.5, seed=k), n)) for k, p in enumerate(precisions)]
    assert gain == pytest.approx(found[0] - found[1], abs=0.01)
