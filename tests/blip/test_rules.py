"""The presets, and what is refused."""

import dataclasses

import pytest

from bitfreeze import BLIP, Rules
from bitfreeze.blip.rules import DirectionRules, WeightRules
from support.protected_nets import Net


def test_directions_are_the_default_and_strict_rules_where_a_setting_of_theirs_is_given() -> None:
    assert BLIP(Net()).rules == Rules.directions() == DirectionRules(damping=0.01, temperature=2.0)
    assert "tolerance=0.05" in repr(BLIP(Net()))
    assert BLIP(Net(), budget=0.1).rules == BLIP(Net(), prior=1e-3).rules == Rules.strict()


def test_strict_is_what_weight_rules_begin_with() -> None:
    assert WeightRules() == Rules.strict()
    assert (WeightRules().centre, WeightRules().gain, WeightRules().fisher, WeightRules().snap) == (
        "nested",
        "appendix",
        "mean",
        False,
    )
    assert WeightRules().power_of_two


def test_following_is_strict_but_for_the_centre() -> None:
    assert Rules.following() == dataclasses.replace(Rules.strict(), centre="following")


def test_released_snaps_to_rounded_centres_with_the_appendix_gain() -> None:
    rules = Rules.released()
    assert (rules.centre, rules.gain, rules.fisher, rules.snap) == ("rounded", "appendix", "mean", True)
    assert not rules.power_of_two
    assert rules.fan_in_bias_prior
    assert not rules.straight_through


def test_text_is_released_without_the_snap_and_with_eq8() -> None:
    assert Rules.text() == dataclasses.replace(Rules.released(), snap=False, gain="eq8")


def test_the_flags_of_text_change_one_thing_each() -> None:
    text = Rules.text()
    assert Rules.text(algorithm1=True) == dataclasses.replace(
        text, centre="rounded_before", fisher="sum", open_range=False
    )
    assert Rules.text(straight_through=True) == dataclasses.replace(text, straight_through=True)


def test_a_total_gain_needs_a_mean_fisher() -> None:
    with pytest.raises(ValueError, match="needs a mean Fisher, got fisher='sum'; use rounding='each'"):
        WeightRules(rounding="total", fisher="sum")


@pytest.mark.parametrize("field", ["centre", "gain", "rounding", "fisher"])
def test_an_unknown_choice_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"Rules.{field} must be one of .*, got 'other'"):
        WeightRules(**{field: "other"})


def test_nested_intervals_need_exact_bounds() -> None:
    with pytest.raises(ValueError, match="exact only with power_of_two"):
        WeightRules(power_of_two=False)


def test_rules_cannot_be_changed_under_way() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        WeightRules().gain = "eq8"
