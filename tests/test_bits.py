"""Quantisation, information gain and intervals against slow references, closed forms and invariants."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze import bits, information_gain, quantize

GAINS = ("appendix", "eq8")

values = st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=20)
depths = st.integers(0, 23)
powers = st.integers(-6, 6).map(lambda k: 2.0**k)


def random_fisher(n: int, seed: int, spread: float = 5.0) -> torch.Tensor:
    """Over many orders of magnitude, with some zeros: as in networks."""
    generator = torch.Generator().manual_seed(seed)
    fisher = torch.exp(spread * torch.randn(n, generator=generator)) * 1e-6
    return torch.where(torch.rand(n, generator=generator) < 0.1, 0.0, fisher)


def slow_quantize(x: float, n: int, bound: float) -> float:
    """Eq. 2 with exact fractions; ties go to the even number, as in IEEE arithmetic."""
    edge = 1 - Fraction(1, 2 ** (n + 1))
    clipped = max(-edge, min(edge, Fraction(x) / Fraction(bound)))
    return float(Fraction(round(clipped * 2**n), 2**n) * Fraction(bound))


# quantisation


@given(values, depths, powers)
def test_quantize_equals_exact_fractions(xs: list[float], n: int, bound: float) -> None:
    found = quantize(torch.tensor(xs), n, bound)
    assert found.tolist() == [slow_quantize(x, n, bound) for x in xs]


@given(values, depths, st.floats(0.01, 100))
def test_quantize_is_within_half_a_step_of_the_clipped_value(xs: list[float], n: int, bound: float) -> None:
    x = torch.tensor(xs, dtype=torch.float64)
    edge = bound * (1 - 2.0 ** -(n + 1))
    distance = (quantize(x, n, bound) - x.clamp(-edge, edge)).abs()
    assert (distance <= bound * 2.0 ** -(n + 1) + bound * 1e-15).all()


@given(values, depths, powers)
def test_quantize_is_idempotent(xs: list[float], n: int, bound: float) -> None:
    once = quantize(torch.tensor(xs), n, bound)
    assert torch.equal(quantize(once, n, bound), once)


def test_quantize_takes_a_bit_count_for_each_entry() -> None:
    x = torch.linspace(-1.2, 1.2, 24)
    n = torch.arange(24, dtype=torch.uint8)
    assert quantize(x, n).tolist() == [slow_quantize(v, k, 1.0) for v, k in zip(x.tolist(), n.tolist(), strict=True)]


def test_quantize_with_no_bits_is_zero() -> None:
    assert not quantize(torch.linspace(-3, 3, 101), 0, 2.0).any()


# intervals


@given(st.integers(1, 23), st.data())
def test_interval_ends_equal_exact_fractions(depth: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, depth))
    bound = data.draw(powers)
    centre = data.draw(st.integers(-(2**depth), 2**depth))
    unit = Fraction(bound) / 2**depth
    reach = 2 ** (depth - n)
    for open_range, edge in ((False, 2 ** (depth + 1)), (True, 2**depth - 1)):
        low, high = bits.interval(
            torch.tensor([centre], dtype=torch.int32), torch.tensor([n], dtype=torch.uint8), depth, bound,
            torch.float32, open_range=open_range,
        )  # fmt: skip
        assert Fraction(low.item()) == max(centre - reach, -edge) * unit
        assert Fraction(high.item()) == min(centre + reach, edge) * unit


@pytest.mark.parametrize("depth", range(8, 24))
def test_strict_intervals_nest_exactly_over_50_tasks(depth: int) -> None:
    n, bound = 100_000, 2.0 ** (depth % 5 - 2)
    generator = torch.Generator().manual_seed(depth)
    frozen = torch.zeros(n, dtype=torch.uint8)
    centre = torch.zeros(n, dtype=torch.int32)
    low, high = bits.interval(centre, frozen, depth, bound, torch.float32)
    assert (low == -bound).all()
    assert (high == bound).all()
    for _ in range(50):
        # anywhere in the interval, with a good part of the parameters at its very ends, as training leaves them
        step = torch.rand(n, generator=generator) * 1.6 - 0.3
        x = torch.clamp(low + (high - low) * step, low, high)
        gain = torch.randn(n, generator=generator) * 1.5 - 1
        before, old_low, old_high, old_centre = frozen, low, high, centre
        frozen = before + bits.extra_bits(gain, before, depth)
        centre = bits.nested_centre(x, centre, before, frozen, depth, bound)
        low, high = bits.interval(centre, frozen, depth, bound, torch.float32)
        assert (old_low <= low).all()
        assert (high <= old_high).all()
        assert ((low <= x) & (x <= high)).all()
        assert (high - low == 2 * bound * torch.exp2(-frozen.float())).all()
        assert (before <= frozen).all()
        assert (frozen <= depth).all()
        assert torch.equal(centre[frozen == before], old_centre[frozen == before])
    assert 0 < frozen.double().mean() < depth
    assert (frozen == depth).any()


def test_nested_centre_is_the_nearest_unit_where_there_is_room() -> None:
    depth, bound = 10, 2.0
    x = torch.linspace(-0.9, 0.9, 1001) * bound
    none, some = torch.zeros(1001, dtype=torch.uint8), torch.full((1001,), 4, dtype=torch.uint8)
    centre = bits.nested_centre(x, torch.zeros(1001, dtype=torch.int32), none, some, depth, bound)
    assert centre.tolist() == [round(Fraction(v) * 2**depth / Fraction(bound)) for v in x.tolist()]


@pytest.mark.parametrize("depth", [1, 8, 20, 23])
def test_a_following_centre_is_the_nearest_unit_from_which_the_interval_stays_in_the_range(depth: int) -> None:
    bound, unit = 0.5, Fraction(1, 2 ** (depth + 1))
    generator = torch.Generator().manual_seed(depth)
    x = torch.cat([torch.rand(2000, generator=generator) - 0.5, torch.tensor([-0.5, 0.0, 0.5])])
    frozen = torch.randint(depth + 1, x.shape, generator=generator).to(torch.uint8)
    centre = bits.following_centre(x, frozen, depth, bound)
    low, high = bits.interval(centre, frozen, depth, bound, torch.float32)
    for value, count, c, lo, hi in zip(*(t.tolist() for t in (x, frozen, centre, low, high)), strict=True):
        reach = 2 ** (depth - count)
        assert Fraction(hi) - Fraction(lo) == 2 * reach * unit
        assert -bound <= lo <= value <= hi <= bound
        if abs(value / bound) * 2**depth + reach < 2**depth:  # room on both sides: no task moves it further than reach
            assert abs(Fraction(value) - c * unit) <= unit / 2


@given(values, st.integers(1, 23), powers, st.data())
def test_rounded_centre_is_q_in_units(xs: list[float], depth: int, bound: float, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, depth))
    x = torch.tensor(xs)
    centre = bits.rounded_centre(x, torch.full(x.shape, n, dtype=torch.uint8), depth, bound)
    assert bits.to_value(centre, depth, bound, torch.float32).tolist() == [slow_quantize(v, n, bound) for v in xs]


# information gain


def test_both_gains_follow_their_formula_in_float64() -> None:
    new, old = random_fisher(20_000, 1), random_fisher(20_000, 2) + 1e-9
    new64, old64 = new.double().numpy(), old.double().numpy()
    for t in (1, 2, 3, 10, 200):
        appendix = 0.5 * np.log2((t * old64 + new64) / ((t + 1) * old64))
        eq8 = 0.5 * np.log2((t * old64 + new64) / (t * old64))
        for rule, expected in (("appendix", appendix), ("eq8", eq8)):
            np.testing.assert_allclose(information_gain(new, old, t, rule), expected, rtol=1e-5, atol=1e-6)
            found = information_gain(new.double(), old.double(), t, rule)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@given(st.integers(1, 300), st.floats(2.0**-100, 2.0**60, width=32), st.sampled_from((-1, 0, 1)))
def test_the_appendix_gain_is_positive_just_where_the_task_tells_more_than_the_mean_did(
    t: int, old: float, side: int
) -> None:
    at = torch.tensor(old)
    new = at if side == 0 else torch.nextafter(at, at * (2.0 if side > 0 else 0.5))
    extra = bits.extra_bits(information_gain(new, at, t), torch.zeros((), dtype=torch.uint8), 20)
    assert extra.item() == (1 if new > at else 0)


@pytest.mark.parametrize("ratio", [1.0, 1e-3, 1e-6, 1e-9, 1e-20])
def test_the_gain_of_eq8_is_positive_for_every_positive_fisher(ratio: float) -> None:
    old = torch.tensor([1e-12, 1e-3, 1.0])
    for t in (1, 7):
        gain = information_gain(ratio * old, old, t, "eq8")
        assert (bits.extra_bits(gain, torch.zeros(3, dtype=torch.uint8), 20) >= 1).all()


@pytest.mark.parametrize("rule", GAINS)
def test_a_task_without_fisher_freezes_nothing(rule: str) -> None:
    old = random_fisher(10_000, 3) + 1e-30
    frozen = torch.zeros(10_000, dtype=torch.uint8)
    for t in range(1, 201):
        assert not bits.extra_bits(information_gain(torch.zeros_like(old), old, t, rule), frozen, 20).any()


@pytest.mark.parametrize("rule", GAINS)
@pytest.mark.parametrize(("factor", "allowed"), [(2.0**-30, 0), (2.0**20, 0), (1 / 3, 10), (12345.678, 10)])
def test_scaling_fisher_and_prior_together_changes_nothing(rule: str, factor: float, allowed: int) -> None:
    n, depth, differing = 100_000, 20, 0
    scales = (1.0, factor)
    accumulated = [torch.full((n,), 1e-8 * scale) for scale in scales]
    frozen = [torch.zeros(n, dtype=torch.uint8) for _ in scales]
    for t in range(1, 6):
        for k, scale in enumerate(scales):
            new = random_fisher(n, t) * scale
            gain = information_gain(new, accumulated[k], t, rule)
            frozen[k] = frozen[k] + bits.extra_bits(gain, frozen[k], depth)
            accumulated[k] = bits.accumulate_fisher(new, accumulated[k], t)
        differing = int((frozen[0] != frozen[1]).sum())
    assert frozen[0].float().mean() > 1
    assert differing <= allowed  # rounding at a ceil boundary


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30), st.integers(1, 23), st.data())
def test_extra_bits_are_the_gain_rounded_up_within_what_is_free(
    gains: list[float], depth: int, data: st.DataObject
) -> None:
    frozen = data.draw(st.lists(st.integers(0, depth), min_size=len(gains), max_size=len(gains)))
    found = bits.extra_bits(torch.tensor(gains), torch.tensor(frozen, dtype=torch.uint8), depth)
    expected = [min(max(0, -int(-g // 1)), depth - f) for g, f in zip(gains, frozen, strict=True)]
    assert found.tolist() == expected


def test_an_infinite_gain_freezes_all_that_is_left() -> None:
    frozen = torch.tensor([0, 5, 20], dtype=torch.uint8)
    assert bits.extra_bits(torch.full((3,), torch.inf), frozen, 20).tolist() == [20, 15, 0]


def test_the_fisher_accumulates_as_a_mean_or_as_a_sum() -> None:
    tasks = [random_fisher(100, seed).double() for seed in range(6)]
    mean, total = tasks[0], tasks[0]
    for t, new in enumerate(tasks[1:], start=1):
        mean = bits.accumulate_fisher(new, mean, t)
        total = bits.accumulate_fisher(new, total, t, "sum")
    torch.testing.assert_close(mean, torch.stack(tasks).mean(0))
    # Algorithm 1: F <- t F + F_t, unrolled by hand for five tasks
    f = tasks
    torch.testing.assert_close(total, 120 * f[0] + 120 * f[1] + 60 * f[2] + 20 * f[3] + 5 * f[4] + f[5])


@pytest.mark.parametrize("rule", ["mean", "sum"])
def test_the_fisher_of_a_task_is_found_again_in_the_total(rule: str) -> None:
    new, old = torch.rand(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for task in (1, 2, 7):
        total = bits.accumulate_fisher(new, old, task, rule)
        torch.testing.assert_close(bits.fisher_of_task(total, old, task, rule), new, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("call", [information_gain, bits.accumulate_fisher])
def test_unknown_rules_are_refused(call) -> None:
    with pytest.raises(ValueError, match=r"rule must be '.*' or '.*', got 'other'"):
        call(torch.ones(1), torch.ones(1), 1, "other")


@pytest.mark.parametrize("rule", GAINS)
def test_the_total_gain_is_the_sum_of_all_gains(rule: str) -> None:
    torch.manual_seed(0)
    prior = torch.tensor(1e-9, dtype=torch.float64)
    accumulated, total = prior, torch.zeros(500, dtype=torch.float64)
    for task in range(1, 12):
        new = torch.rand(500, dtype=torch.float64) ** 8 * 10 ** float(torch.randn(()))
        new[::7] = 0
        total = total + information_gain(new, accumulated, task, rule)
        accumulated = bits.accumulate_fisher(new, accumulated, task, "mean")
        torch.testing.assert_close(bits.total_gain(accumulated, prior, task, rule), total, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_numbers_that_cannot_hold_the_grid_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="x must be float32 or float64"):
        quantize(torch.ones(3, dtype=dtype), 20)
