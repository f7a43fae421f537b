"""Options: what their hints accept, and what is said of the rest."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.lab.methods.blip import RULES, RuleSet
from bitfreeze.lab.options import Option, checked, options_of, typed

NUMBERS = st.floats(-3.4e38, 3.4e38)
HINTS = {
    bool: st.booleans(),
    int: st.integers(-(10**12), 10**12),
    float: st.integers(-(10**12), 10**12) | NUMBERS,
    Literal["a", "true", "1"]: st.sampled_from(["a", "true", "1"]),
    int | None: st.none() | st.integers(-99, 99),
    Literal["a", "b"] | None: st.sampled_from(["a", "b", None]),
    list[int]: st.lists(st.integers(-99, 99)),
    Sequence[float]: st.lists(NUMBERS),
    tuple[str, ...]: st.lists(st.text("ab #?&=/é-", max_size=5)),
    Sequence[Sequence[int]]: st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=3),
}


@given(st.data())
def test_what_is_typed_is_what_comes_out(data):
    hint = data.draw(st.sampled_from(list(HINTS)))
    value = data.draw(HINTS[hint])
    option = Option(hint, value, "")
    parsed = option.parse("part.name", typed(value))
    assert parsed == value
    assert type(parsed) is type(value)
    assert option.check("part.name", value) == value


@given(st.text(max_size=6) | st.floats().map(str) | st.integers().map(str))
def test_a_whole_number_is_its_digits_and_nothing_else(text):
    """Against the definition: a sign, and digits without a leading 0. This leaves out +1, 01, 1_0 and 0x1."""
    digits = text.removeprefix("-")
    whole = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    option = Option(int, 7, "")
    if whole and abs(int(text)) >= 2**63:
        with pytest.raises(ValueError, match=r"whole ones below 2\^63, got a larger$"):
            option.parse("a.b", text)
    elif whole:
        assert option.parse("a.b", text) == int(text)
    else:
        with pytest.raises(ValueError, match=r"^a\.b must be a whole number, got .*; write for example a\.b=7$"):
            option.parse("a.b", text)


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (bool, 1, "true or false"),
        (int, True, "a whole number"),
        (int, 1.0, "a whole number"),
        (float, "1", "a number"),
        (float, True, "a number"),
        (float, float("inf"), "a number"),
        (float, 10**400, "a number"),
        (str, "two\nlines", "a word"),
        (str, None, "a word"),
        (int | float | None, "x", "a whole number, a number or none"),
        (Literal["a", "b", "c"], "d", "a, b or c"),
        (Literal["a", "b"], "none", "a or b"),
        (list[int], [1, 2.5], "a list, each entry a whole number"),
        (list[int], "12", "a list, each entry a whole number"),
        (Sequence[int | None], ["none"], "a list, each entry a whole number or none"),
        (list[list[int]], [[1], 2], "a list, each entry a list, each entry a whole number"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_words(hint, value, words):
    got = repr(value) if len(repr(value)) <= 100 else f"{repr(value)[:100]}…"
    sentence = f"part.name must be {words}, got {got}; write for example part.name=[3]"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Option(hint, [3], "").check("part.name", value)


def test_none_is_a_word_in_a_preset_where_none_is_allowed():
    assert Option(float | None, 1.0, "").check("a.b", "none") is None
    assert Option(str | None, "", "").parse("a.b", "none") is None
    assert Option(str, "", "").check("a.b", "none") == "none"


def test_options_of_functions_and_of_dataclasses_are_the_same():
    def build(shape, size: Annotated[int, "how large"] = 3, names: Sequence[str] = ("a",)):
        raise NotImplementedError

    @dataclass
    class Base:
        size: Annotated[int, "how large"] = 3

    @dataclass
    class Build(Base):
        names: Sequence[str] = ("a",)

    expected = {"size": Option(int, 3, "how large"), "names": Option(Sequence[str], ["a"], "")}
    assert options_of(build) == options_of(Build) == expected
    assert checked("part", expected, {"size": 4}) == {"size": 4}
    with pytest.raises(ValueError, match="there is no setting of part 'sise': did you mean size"):
        checked("part", expected, {"sise": 4})


@pytest.mark.parametrize("hint", ["", ": dict", ": list", ": 'Option'"])
def test_an_option_without_a_usable_hint_is_refused(hint):
    space: dict[str, object] = {"Option": Option}
    exec(f"def build(size{hint} = 3): ...", space)
    with pytest.raises(ValueError, match=r"option 'size' of build must have a type hint of .* size: int = 1"):
        options_of(space["build"])


def test_help_names_the_choices():
    assert Option(Literal["a", "b"], "a", "which way").help == "a or b: which way"
    assert Option(int, 1, "how many").help == "how many"


def test_typed_lists_are_json_without_spaces():
    assert typed([1, [2.5, "x y"]]) == '[1,[2.5,"x y"]]'
    assert json.loads(typed([True])) == [True]
    assert (typed(None), typed(True), typed(0.1), typed("word")) == ("none", "true", "0.1", "word")


def test_the_rules_that_can_be_chosen_are_those_that_blip_has():
    assert tuple(RULES) == RuleSet.__args__
