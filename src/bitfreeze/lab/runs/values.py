"""Values on a command line that are no settings of a run, and settings as TOML."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..options import plain_value


def parse_options(options: Iterable[str]) -> dict[str, Any]:
    """Options of another system, each written ``name=value``: JSON, a bare word or none."""
    found = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not (name and equals):
            raise ValueError(f"an option is written name=value, got {option!r}")
        found[name] = None if text == "none" else plain_value(text)
    return found


def parse_count(text: str) -> int:
    """The number that ``10M``, ``200k`` or plain digits stand for."""
    units = {"k": 1000, "M": 1_000_000}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        return round(float(number) * unit)
    except (ValueError, OverflowError):  # no number, or an infinite one
        raise ValueError(f"steps must be a number such as 200k, 10M or 50000, got {text!r}") from None


def to_toml(table: Mapping[str, Any]) -> str:
    """A table of plain values and of such tables as TOML. TOML has no None, so it is left out."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in table.items() if _is_plain(value)]
    tables = [f"\n[{key}]\n{to_toml(value)}" for key, value in table.items() if isinstance(value, Mapping)]
    return "\n".join([*plain, *tables]) + ("\n" if plain and not tables else "")


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, Mapping)
