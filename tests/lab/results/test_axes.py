"""Axes that end at round numbers, and labels that keep off each other."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bitfreeze.lab.results.figures.axes import log_ticks, round_ticks, show_ticks
from bitfreeze.lab.results.figures.labels import Box, arranged, label_marks
from bitfreeze.lab.results.figures.style import fixed_figure

pytest.importorskip("matplotlib")
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

ends = st.floats(-1e4, 1e4, allow_nan=False)


@given(ends, ends, st.integers(3, 8))
@example(0.0, 0.0, 5)
@example(93.4, 93.4, 5)
def test_round_ticks_enclose_what_is_shown_at_even_distances(one, other, count):
    low, high = sorted((one, other))
    ticks = round_ticks(low, high, count)
    assert ticks[0] <= low + 1e-6
    assert high - 1e-6 <= ticks[-1]
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0])
    assert f"{steps[0]:e}"[0] in "125"  # 1, 2 or 5 and zeros
    assert 2 <= len(ticks) <= 2 * count + 2


@given(st.floats(0, 100), st.floats(0, 100))
def test_ticks_of_accuracies_end_at_100(one, other):
    ticks = round_ticks(min(one, other), max(one, other), 5, 100.0)
    assert ticks[-1] <= 100
    assert len(ticks) > 1
    assert ticks[-1] >= max(one, other) - 1e-6


@given(st.floats(1e-4, 1e6), st.floats(1, 1e6))
def test_ticks_of_a_logarithmic_axis_enclose_what_is_shown(low, ratio):
    ticks = log_ticks(low, low * ratio)
    assert ticks[0] <= low * (1 + 1e-6)
    assert low * ratio <= ticks[-1] * (1 + 1e-6)
    assert 2 <= len(ticks) <= 14
    assert all(f"{tick:e}"[0] in "125" for tick in ticks)


@pytest.mark.parametrize("seed", range(3))
def test_labels_of_25_methods_keep_off_each_other_and_inside(seed):
    """Marks in two thick clusters and some apart, as methods of like accuracy and memory give them."""
    random = np.random.default_rng(seed)
    near = [np.exp(random.normal(np.log(size), 0.12, 9)) for size in (50, 120)]
    sizes = np.concatenate([*near, random.uniform(20, 200, 7)])
    scores = np.concatenate([random.normal(72, 3, 18), random.uniform(45, 80, 7)])
    figure = fixed_figure(7.2, 4.6)
    axes = figure.add_axes((0.1, 0.115, 0.87, 0.785))
    axes.set_xscale("log")
    show_ticks(axes, "x", log_ticks(min(sizes), max(sizes)))
    show_ticks(axes, "y", round_ticks(min(scores), max(scores), 7, 100.0))
    label_marks(axes, list(zip(sizes, scores, strict=True)), [f"method_{k}" for k in range(25)], [])
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert len(boxes) == 25
    edge = axes.get_window_extent(renderer)
    for own in boxes:
        assert edge.x0 - 1 <= own.x0 < own.x1 <= edge.x1 + 1
    words = [super(type(text), text).get_window_extent(renderer) for text in axes.texts]  # without lines to the marks
    for k, box in enumerate(words):
        assert not any(box.overlaps(other.padded(-1)) for other in words[:k])


def test_a_label_alone_stands_close_to_the_right_of_its_mark():
    (box,) = arranged([(50.0, 50.0)], [(30.0, 10.0)], Box(0, 0, 200, 200))
    assert (box.left, box.bottom) == pytest.approx((57, 45))
    (box,) = arranged([(195.0, 50.0)], [(30.0, 10.0)], Box(0, 0, 200, 200))
    assert box.right <= 200  # at the edge it goes elsewhere
    (box,) = arranged([(50.0, 50.0)], [(30.0, 10.0)], Box(0, 0, 200, 200), [Box(55, 40, 200, 60)])
    assert box.right < 55 or box.bottom > 60 or box.top < 40  # and where something is in the way
