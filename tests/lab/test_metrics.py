"""Metrics against their definitions."""

from statistics import mean, stdev

import pytest

from bitfreeze.lab import metrics

MATRIX = [[90.0], [80.0, 95.0], [85.0, 90.0, 99.0]]


def test_metrics_of_a_small_matrix():
    assert metrics.average_accuracy(MATRIX) == pytest.approx((85 + 90 + 99) / 3)
    assert metrics.backward_transfer(MATRIX) == pytest.approx((-5 - 5) / 2)
    assert metrics.backward_transfer(MATRIX, "T") == pytest.approx(-10 / 3)
    assert metrics.forgetting(MATRIX) == pytest.approx(((90 - 85) + (95 - 90)) / 2)
    assert metrics.learning_accuracy(MATRIX) == pytest.approx((90 + 95 + 99) / 3)
    assert metrics.stability(MATRIX) == pytest.approx((85 / 90 + 90 / 95) / 2)


def test_one_task_has_nothing_to_forget():
    assert metrics.backward_transfer([[50.0]]) == metrics.forgetting([[50.0]]) == 0
    assert metrics.stability([[50.0]]) is None
    assert metrics.stability([[0.0], [0.0, 9.0]]) is None  # nothing was learned that could be kept


def test_over_seeds_the_deviation_of_one_value_is_none():
    assert metrics.spread([3.0, 4.0, 8.0]) == (5.0, stdev([3.0, 4.0, 8.0]))
    assert metrics.spread([3.0]) == (3.0, 0.0)


@pytest.mark.parametrize("count", range(2, 11))
def test_the_interval_of_a_mean_is_that_of_students_t(count):
    stats = pytest.importorskip("scipy.stats")
    values = [float(k * k % 7) for k in range(count)]
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert metrics.interval(values) == pytest.approx((mean(values), (high - low) / 2), rel=1e-3)
