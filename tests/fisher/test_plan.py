"""Rules of the user's own, the check that every rule has to pass, and the report."""

import pytest
import torch
from torch import nn

from bitfreeze.fisher import estimate, explain, register_rule
from bitfreeze.fisher.registry import _rules, find_rule
from support.networks import WIDTH, Sequence, flattened, inputs, network, sequences, straight
from support.truth import assert_matches, check_batches, empirical_fisher, randomise


@pytest.fixture
def _own_rules():
    """Rules that a test registers end with it."""
    before = dict(_rules)
    yield
    _rules.clear()
    _rules.update(before)


class Scaling(nn.Module):
    """A layer of the user's: each feature times its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * self.weight


class QuietScaling(Scaling):
    """A subclass that computes the same."""


class LoudScaling(Scaling):
    def forward(self, x):
        return 2 * super().forward(x)


def right(total, layer, a, delta):
    total += (a * delta).flatten(1, -2).sum(1).square().sum(0)


def squares_too_early(total, layer, a, delta):
    total += (a * delta).square().flatten(0, -2).sum(0)


def of_the_mean(total, layer, a, delta):
    total += (a * delta).flatten(0, -2).sum(0).square()


def twice(total, layer, a, delta):
    right(total, layer, a, delta)
    right(total, layer, a, delta)


def slightly_off(total, layer, a, delta):
    total += 1.01 * (a * delta).flatten(1, -2).sum(1).square().sum(0)


def nan(total, layer, a, delta):
    total += float("nan")


def raises(total, layer, a, delta):
    right(total, layer, a, delta)  # what was added before it fails must not be left behind
    raise RuntimeError("not today\nin detail")


def scaling_model(layer):
    model = nn.Sequential(layer, Sequence(straight))
    return randomise(model).double()


def test_without_a_rule_there_is_a_fallback():
    rules = check_batches(scaling_model(Scaling()), [sequences(6, 3)])
    assert rules["0.weight"] == "torch.func (no rule for weight of Scaling)"


@pytest.mark.usefixtures("_own_rules")
def test_registered_rule_is_used():
    assert register_rule(Scaling, parameter="weight")(right) is right
    rules = check_batches(scaling_model(Scaling()), [sequences(6, 3), sequences(2, 3)])
    assert rules["0.weight"] == "rule Scaling.weight"


@pytest.mark.usefixtures("_own_rules")
def test_subclass_gets_the_rule_while_it_keeps_forward():
    register_rule(Scaling, parameter="weight")(right)
    assert check_batches(scaling_model(QuietScaling()), [sequences(6, 3)])["0.weight"] == "rule Scaling.weight"
    rules = check_batches(scaling_model(LoudScaling()), [sequences(6, 3)])
    assert rules["0.weight"].startswith("torch.func (LoudScaling overrides forward")
    register_rule(LoudScaling, parameter="weight")(right)  # its delta is another, its rule the same: 2 x is its input
    assert find_rule(LoudScaling(), "weight") == (right, "rule LoudScaling.weight")


@pytest.mark.usefixtures("_own_rules")
@pytest.mark.parametrize("wrong", [squares_too_early, of_the_mean, twice, slightly_off, nan])
def test_wrong_rule_is_caught_and_reported(wrong):
    register_rule(Scaling, parameter="weight")(wrong)
    rules = check_batches(scaling_model(Scaling()), [sequences(6, 3), sequences(2, 3)])
    assert rules["0.weight"] == "torch.func (rule Scaling.weight disagrees with autograd)"
    assert rules["1.layer.weight"] == "rule Linear.weight"


@pytest.mark.usefixtures("_own_rules")
def test_rule_that_raises_is_reported():
    register_rule(Scaling, parameter="weight")(raises)
    rules = check_batches(scaling_model(Scaling()), [sequences(6, 3)])
    assert rules["0.weight"] == "torch.func (rule Scaling.weight failed: not today)"


@pytest.mark.usefixtures("_own_rules")
def test_rule_of_a_known_layer_can_be_replaced():
    calls = []

    def linear_bias(total, layer, a, delta):
        calls.append(layer)
        total += delta.square().sum(0)

    register_rule(nn.Linear, parameter="bias")(linear_bias)
    model, x, y = network(3), inputs(6), torch.arange(6) % 3
    assert_matches(estimate(model, [(x, y)], labels="true").values, empirical_fisher(model, x, y))
    assert set(calls) == {model[0], model[2]}


def test_one_wrong_layout_does_not_cost_the_others_their_rules():
    rules = check_batches(Sequence(flattened), [sequences(6, 3)])
    assert rules["head.weight"] == "rule Linear.weight"
    assert rules["head.bias"] == "rule Linear.bias"
    assert "torch.func" in rules["layer.bias"]


def test_explain_reports_what_an_estimate_uses():
    for model in (Sequence(straight), Sequence(flattened), scaling_model(Scaling())):
        batches = [sequences(6, 3), sequences(6, 3)]
        assert explain(model, batches) == estimate(model, batches).ways
    model = Sequence(straight)
    assert explain(model, batches, watch=model.head).keys() == {"head.weight", "head.bias"}


def test_explain_takes_one_batch_and_an_own_forward():
    model, seen = network(3), []

    def batches():
        while True:
            seen.append(1)
            yield {"x": inputs(6)}

    assert explain(model, batches(), lambda batch: model(batch["x"]))["0.bias"] == "rule Linear.bias"
    assert len(seen) == 1
