"""Intervals that widen while a task costs little: the rule itself, and what it does inside BLIP."""

import copy
import math
import random

import pytest
import torch
from torch.optim import SGD, Adam

from bitfreeze import BLIP, Rules
from bitfreeze.blip.directions import Directions
from bitfreeze.blip.widening import GROWTH, WIDEST, Widening
from support.protected_nets import Net, assert_same, make_task, train

# the rule


@pytest.mark.parametrize("spent", [0.0, 0.1, 0.499])
def test_below_half_of_the_tolerance_it_grows_by_a_share_a_step(spent: float) -> None:
    widening = Widening(width=2.0, steps=7)
    widening.set(spent)
    assert math.isclose(widening.width, 2 * GROWTH**7)
    assert widening.steps == 0
    assert GROWTH > 1


@pytest.mark.parametrize("spent", [0.5, 0.8, 1.0, 1.009])
def test_between_half_of_the_tolerance_and_all_of_it_it_stays(spent: float) -> None:
    widening = Widening(width=2.0, steps=7)
    widening.set(spent)
    assert (widening.width, widening.steps) == (2.0, 0)


@pytest.mark.parametrize("spent", [1.011, 1.7, 3.9])
def test_above_the_tolerance_it_shrinks_until_the_same_coordinates_cost_just_that(spent: float) -> None:
    """The cost of coordinates at their edges goes with the square of the width."""
    widening = Widening(width=2.0, steps=7)
    widening.set(spent)
    assert 1 <= widening.width < 2
    assert math.isclose(spent * (widening.width / 2) ** 2, 1)


def test_it_stays_between_1_and_the_widest() -> None:
    draw = random.Random(0)
    widening, seen = Widening(), set()
    for _ in range(2000):
        widening.steps = draw.choice([1, 10, 300])
        widening.set(draw.choice([0.0, 0.3, 0.7, 1.5, 50.0, 1e9]) * draw.random())
        assert 1 <= widening.width <= WIDEST
        seen.add(widening.width)
    assert {1.0, WIDEST} <= seen


# inside BLIP

RULES = Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=8, leading=2, leading_every=2)


def guard_of(blip: BLIP) -> Directions:
    assert isinstance(blip._tensors, Directions)
    return blip._tensors


def started(rules: Rules = RULES, tolerance: float = 0.02) -> tuple[Net, BLIP]:
    model = Net()
    blip = BLIP(model, rules=rules, tolerance=tolerance)
    blip.attach()
    train(model, make_task(0), SGD(model.parameters(), lr=1.0))
    blip.consolidate([make_task(0)], labels="exact")
    return model, blip


def test_a_task_that_costs_little_widens_all_intervals_and_the_next_begins_anew() -> None:
    model, blip = started(Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=1))
    guard = guard_of(blip)
    train(model, make_task(1), SGD(model.parameters(), lr=1e-6), steps=20)
    assert math.isclose(guard.widening.width, GROWTH**20)
    assert {state.width for state in guard.states.values()} == {guard.widening.width}
    layer = guard.layers["backbone.0.weight"]
    with torch.no_grad():
        layer.weight.local.add_(100.0)
    layer.hold_()
    edges = layer.turning.turn(layer.change()).abs()
    assert (edges <= layer.radius * GROWTH**20 + 5e-4).all()
    assert (edges > layer.radius * GROWTH**19 + 5e-4).any()
    blip.consolidate([make_task(1)], outside="mend")
    assert guard.widening == Widening()
    assert {state.width for state in guard.states.values()} == {1.0}


def test_a_task_that_costs_much_does_not() -> None:
    model, blip = started(Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=1), tolerance=1e-4)
    optimizer = SGD(model.parameters(), lr=100.0)
    for _ in range(5):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        assert blip.drift() > 0.5e-4
    assert guard_of(blip).widening.width == 1


def test_width_and_paces_go_with_the_state_and_a_task_goes_on_bit_for_bit() -> None:
    model, blip = started()
    train(model, make_task(1), SGD(model.parameters(), lr=1e-4), steps=37)
    guard = guard_of(blip)
    assert guard.widening.width > 1.05
    assert guard.widening.steps > 0
    assert max(layer.pace for layer in guard.layers.values()) == 8
    assert any(layer.since for layer in guard.layers.values())
    other = Net(seed=9)
    resumed = BLIP(other, rules=RULES, tolerance=0.02)
    resumed.attach()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(blip.state_dict()))
    again = guard_of(resumed)
    assert again.widening == guard.widening
    assert {state.width for state in again.states.values()} == {guard.widening.width}
    for name, layer in guard.layers.items():
        twin = again.layers[name]
        assert (twin.pace, twin.since, twin.spent) == (layer.pace, layer.since, layer.spent)
    optimizers = [Adam(net.parameters(), lr=0.01) for net in (model, other)]
    for _ in range(20):
        for net, optimizer in zip((model, other), optimizers, strict=True):
            train(net, make_task(2), optimizer, steps=1)
        assert_same(dict(other.state_dict()), dict(model.state_dict()))
        assert again.widening == guard.widening
    for each in (blip, resumed):
        torch.manual_seed(2)
        each.consolidate([make_task(2)])
    assert_same(resumed.state_dict(), blip.state_dict())
