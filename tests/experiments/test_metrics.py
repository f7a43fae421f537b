"""Metrics against their definitions."""

import pytest

from bitfreeze.experiments import metrics

MATRIX = [[90.0], [80.0, 95.0], [85.0, 90.0, 99.0]]


def test_metrics_of_a_small_matrix():
    assert metrics.average_accuracy(MATRIX) == pytest.approx((85 + 90 + 99) / 3)
    assert metrics.backward_transfer(MATRIX) == pytest.approx((-5 - 5) / 2)
    assert metrics.backward_transfer(MATRIX, "T") == pytest.approx(-10 / 3)
    assert metrics.forgetting(MATRIX) == pytest.approx(((90 - 85) + (95 - 90)) / 2)
    assert metrics.learning_accuracy(MATRIX) == pytest.approx((90 + 95 + 99) / 3)


def test_one_task_has_nothing_to_forget():
    assert metrics.backward_transfer([[50.0]]) == metrics.forgetting([[50.0]]) == 0
