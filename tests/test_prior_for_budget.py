"""The prior that a budget asks for, against evaluating the gain entry by entry."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bitfreeze import information_gain
from bitfreeze.bits import extra_bits, prior_for_budget

GAINS = ("appendix", "eq8")


def share_frozen(fisher: Tensor, prior: float, depth: int, rule: str) -> float:
    gain = information_gain(fisher.double(), torch.tensor(prior, dtype=torch.float64), 1, rule)
    return extra_bits(gain, torch.zeros(len(fisher), dtype=torch.uint8), depth).double().mean().item() / depth


def least_share(depth: int, rule: str) -> float:
    """Eq. 8 freezes a bit of everything that has any Fisher at all."""
    return 1 / depth if rule == "eq8" else 0.0


@pytest.mark.parametrize("rule", GAINS)
@pytest.mark.parametrize("depth", [1, 8, 20, 23])
@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("budget", [0.06, 0.1, 0.5, 0.95])
def test_the_budget_is_used_and_not_passed(rule: str, depth: int, spread: float, budget: float) -> None:
    generator = torch.Generator().manual_seed(depth)
    fisher = torch.exp(spread * torch.randn(20_000, dtype=torch.float64, generator=generator)) * 1e-7
    prior, share = prior_for_budget(fisher, budget, depth, rule)
    assert share == pytest.approx(share_frozen(fisher, prior, depth, rule), abs=2 / (20_000 * depth))
    if budget < least_share(depth, rule):
        assert share == pytest.approx(least_share(depth, rule))
    else:
        assert budget - 2 / 20_000 <= share <= budget


@given(
    st.lists(st.integers(-40, 40).map(lambda k: 1.7**k), min_size=1, max_size=12),
    st.integers(1, 23),
    st.floats(0.01, 0.99),
    st.sampled_from(GAINS),
)
def test_a_few_entries_and_ties(entries: list[float], depth: int, budget: float, rule: str) -> None:
    fisher = torch.tensor(entries, dtype=torch.float64)
    prior, share = prior_for_budget(fisher, budget, depth, rule)
    # a hair above the prior found nothing more is frozen, a hair below it the budget would be passed
    assert share == pytest.approx(share_frozen(fisher, prior * (1 + 1e-9), depth, rule), abs=1e-12)
    least = least_share(depth, rule)
    assert share <= max(budget, least) + 1e-12
    if share > least or least <= budget:
        assert share_frozen(fisher, prior * (1 - 1e-9), depth, rule) > budget - 1e-12


@pytest.mark.parametrize("rule", GAINS)
def test_the_prior_scales_with_the_fisher(rule: str) -> None:
    fisher = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prior, share = prior_for_budget(fisher, 0.2, 20, rule)
    for factor in (1e-30, 1e-6, 1e9):
        scaled, same = prior_for_budget(fisher * factor, 0.2, 20, rule)
        assert scaled == pytest.approx(prior * factor, rel=1e-9)
        assert same == share


def test_eq8_freezes_at_least_one_bit_of_each() -> None:
    fisher = torch.rand(500, dtype=torch.float64) + 0.1
    assert prior_for_budget(fisher, 0.01, 10, "eq8")[1] == pytest.approx(0.1)
    assert prior_for_budget(fisher, 0.01, 10, "appendix")[1] <= 0.01


@pytest.mark.parametrize("wanted", [2, 3, 6, 7, 14])
def test_a_budget_that_is_a_whole_number_of_bits_is_met_exactly(wanted: int) -> None:
    """However the quotient is rounded."""
    for entries in ([1.0], [3e-9] * 7):
        share = prior_for_budget(torch.tensor(entries, dtype=torch.float64), wanted / 20, 20)[1]
        assert share == pytest.approx(wanted / 20)
