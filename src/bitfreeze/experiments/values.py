"""Values of settings: read from a command line, held against the kind they should have, written as TOML."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from math import isfinite
from types import NoneType
from typing import Any

KINDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a word", list: "a list", NoneType: "none",
}  # fmt: skip


def fits(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def is_finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(is_finite(entry) for entry in value)
    return not isinstance(value, float) or isfinite(value)


def parse_value(text: str) -> Any:
    """A TOML value; a bare word is a string."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_options(options: Iterable[str]) -> dict[str, Any]:
    """``name=value`` each."""
    found = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not (name and equals):
            raise ValueError(f"an option is written name=value, got {option!r}")
        found[name] = parse_value(text)
    return found


def parse_count(text: str) -> int:
    """``10M``, ``200k`` or a plain number."""
    units = {"k": 1000, "M": 1_000_000}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        return round(float(number) * unit)
    except (ValueError, OverflowError):  # no number, or an infinite one
        raise ValueError(f"{text!r} is no number of steps: write 200k, 10M or 50000") from None


def to_toml(table: Mapping[str, Any]) -> str:
    """A table of plain values and tables of such, as TOML. None, which TOML lacks, is left out."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in table.items() if _is_plain(value)]
    tables = [f"\n[{key}]\n{to_toml(value)}" for key, value in table.items() if isinstance(value, Mapping)]
    return "\n".join([*plain, *tables]) + ("\n" if plain and not tables else "")


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, Mapping)
