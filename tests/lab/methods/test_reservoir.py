"""The reservoir: a uniform sample whatever the batches, and an algorithm that goes row by row."""

from collections import Counter
from itertools import combinations

import pytest
import torch
from scipy.stats import chi2

from bitfreeze.lab.methods.reservoir import Reservoir

SEED = 20


def filled(places, sizes):
    reservoir, start = Reservoir(places), 0
    for size in sizes:
        reservoir.add(number=torch.arange(start, start + size))
        start += size
    return reservoir


@pytest.mark.parametrize("sizes", [[1] * 7, [7], [2, 4, 1]])
def test_every_subset_is_equally_likely(sizes):
    """All 35 ways to keep 3 of 7 rows, 3500 times: chi-square with 34 degrees of freedom, at one in a thousand."""
    torch.manual_seed(SEED)
    counts = Counter(tuple(sorted(filled(3, sizes).fields["number"].tolist())) for _ in range(3500))
    ways = list(combinations(range(7), 3))
    assert set(counts) == set(ways)
    assert sum((counts[way] - 100) ** 2 / 100 for way in ways) < chi2.ppf(0.999, len(ways) - 1)


def test_rows_take_their_places_one_after_another():
    """The same draws, row by row in plain Python; several rows of a batch compete for a place."""
    sizes = [5, 40, 3, 100]
    torch.manual_seed(SEED)
    found = filled(8, sizes)
    torch.manual_seed(SEED)
    draws = [u for size in sizes for u in torch.rand(size, dtype=torch.float64).tolist()]
    truth = list(range(8))
    for n, u in enumerate(draws):
        if n >= 8 and int(u * (n + 1)) < 8:
            truth[int(u * (n + 1))] = n
    assert found.fields["number"].tolist() == truth
    assert (len(found), found.seen) == (8, 148)


def test_fields_of_a_row_stay_together_and_wider_vectors_widen_the_field():
    torch.manual_seed(SEED)
    reservoir = Reservoir(20)
    for start, width in ((0, 2), (30, 4), (60, 3)):
        number = torch.arange(start, start + 30)
        reservoir.add(
            number=number, vector=number[:, None] + torch.ones(30, width), picture=number.reshape(-1, 1, 1, 1)
        )
    held = reservoir.fields
    width = torch.tensor([2, 4, 3])[held["number"] // 30]
    assert set(width.tolist()) == {2, 3, 4}
    assert torch.equal(held["vector"], (held["number"][:, None] + 1.0) * (torch.arange(4) < width[:, None]))
    assert torch.equal(held["picture"].flatten(), held["number"])
    assert reservoir.nbytes == 20 * (8 + 4 * 4 + 8)


def test_draws_have_no_repeats_and_only_rows_that_came():
    torch.manual_seed(SEED)
    few, full = filled(50, [7]), filled(50, [200])
    assert sorted(few.draw(20)["number"].tolist()) == list(range(7))
    drawn = full.draw(20)["number"].tolist()
    assert len(set(drawn)) == 20
    assert set(drawn) <= set(full.fields["number"].tolist())
