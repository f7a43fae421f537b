"""Lines of ``events.jsonl`` become events.

Two kinds of training write events of the same name with other fields, so a line is read as the class whose fields it
has. Any other field is ignored, except in the event of a task, where it is a figure that the method reports.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from .events import (
    AccuracyResult,
    Continued,
    EpochDone,
    Evaluation,
    Event,
    LossResult,
    RandomPlay,
    ScoreResult,
    Started,
    TaskDone,
    TaskPlayed,
    TaskRead,
    TaskTested,
    Unreadable,
    UpdateDone,
)

_CLASSES: tuple[type[Event], ...] = (
    Started, EpochDone, UpdateDone, RandomPlay, Evaluation, Continued, TaskTested, TaskPlayed, TaskRead,
    AccuracyResult, ScoreResult, LossResult,
)  # fmt: skip


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of JSON can stand for a field with this type, its entries included."""
    if isinstance(hint, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(entry, get_args(hint)[0]) for entry in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(entry, get_args(hint)[1]) for entry in value.values())
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


_FIELDS = {
    of: {each.name: get_type_hints(of)[each.name] for each in of.in_line() if each.name != "report"} for of in _CLASSES
}
_REQUIRED = {
    of: [each.name for each in of.in_line() if each.default is MISSING and each.default_factory is MISSING]
    for of in _CLASSES
}


def values_of(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None for a line without number and name."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(values, dict) and type(values.get("n")) is int and "event" in values
    return values if is_event and isinstance(values.get("link"), str | None) else None


def from_json(values: Mapping[str, Any]) -> Event:
    """The event that ``to_json`` gave; an Unreadable where no class has these fields."""
    number, name = values["n"], values["event"]
    faults = {of: _faults(of, values) for of in _CLASSES if of.name == name}
    if not faults:
        return Unreadable(n=number, event=name, reason=f"this version has no event {name!r}")
    best = min(faults, key=lambda of: len(faults[of]))
    if faults[best]:
        lacking = " and ".join(faults[best])
        return Unreadable(n=number, event=name, reason=f"the event {name!r} lacks a valid {lacking}")
    own = {key: values[key] for key in _FIELDS[best] if key in values}
    if issubclass(best, TaskDone):
        own["report"] = {key: value for key, value in values.items() if key not in own and key != "event"}
    return best(**own)


def _faults(of: type[Event], values: Mapping[str, Any]) -> list[str]:
    """The fields that are missing or have another type."""
    wrong = [name for name, hint in _FIELDS[of].items() if name in values and not _fits(values[name], hint)]
    return [*wrong, *(name for name in _REQUIRED[of] if name not in values)]
