"""Options of streams, networks, methods and training: declared by type hints, and checked against them.

An option is a parameter of a function, or a field of a dataclass, that has a default. Its hint says which values it
takes and what they mean: ``batch: Annotated[int, "samples in a step"] = 32``.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from .registry import look_up

LARGEST, LARGEST_WHOLE = 3.4e38, 2**63 - 1  # what float32 and a whole number of 64 bits can hold

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", NoneType: "none"}


@dataclass(frozen=True)
class Option:
    hint: Any  # bool, int, float, str, None, Literal, a union of these, or a sequence of one of them
    default: Any
    meaning: str

    @property
    def help(self) -> str:
        """The meaning, after the choices where there are any."""
        choices = any(get_origin(kind) is Literal for kind in _kinds(self.hint))
        return f"{described(self.hint)}: {self.meaning}" if choices and self.meaning else self.meaning

    def check(self, path: str, given: Any) -> Any:
        """The value that a preset or a caller gave. The word "none" stands for None, which TOML lacks."""
        value = None if given == "none" and _fits(None, self.hint) else given
        return self._require(path, value, given)

    def parse(self, path: str, text: str) -> Any:
        """The value that was typed: JSON, a bare word or none. Where a word is wanted, ``true`` is a word."""
        takes_words = any(kind is str or get_origin(kind) is Literal for kind in _kinds(self.hint))
        if text == "none" and _fits(None, self.hint):
            return None
        return self._require(path, text if takes_words else plain_value(text), text)

    def _require(self, path: str, value: Any, given: Any) -> Any:
        if not _fits(value, self.hint):
            got = repr(given) if len(repr(given)) <= 100 else f"{repr(given)[:100]}…"
            raise ValueError(
                f"{path} must be {described(self.hint)}, got {got}; write for example {path}={typed(self.default)}"
            )
        large = _largest(value)
        if large > (LARGEST_WHOLE if isinstance(large, int) else LARGEST):
            raise ValueError(
                f"{path} must hold numbers of at most {LARGEST:g}, and whole ones below 2^63, got a larger"
            )
        return value


def options_of(target: Callable[..., Any]) -> dict[str, Option]:
    """The options of a function or a dataclass by name."""
    hints = get_type_hints(target, include_extras=True)
    return {
        name: _option(target, name, hints.get(name), parameter.default)
        for name, parameter in signature(target).parameters.items()
        if parameter.default is not Parameter.empty
    }


def _option(target: Callable[..., Any], name: str, hint: Any, default: Any) -> Option:
    plain, meaning = (hint.__origin__, hint.__metadata__[0]) if get_origin(hint) is Annotated else (hint, "")
    try:
        described(plain)
    except KeyError:
        raise ValueError(
            f"option {name!r} of {target.__name__} must have a type hint of bool, int, float, str, Literal or None, a "
            f"union or a sequence of these; write for example {name}: int = 1"
        ) from None
    return Option(plain, list(default) if isinstance(default, tuple) else default, meaning)


def checked(part: str, declared: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of ``given``, each a declared option of this part of the settings."""
    return {
        name: look_up(f"setting of {part}", name, declared).check(f"{part}.{name}", value)
        for name, value in given.items()
    }


def require(
    part: str, settings: object, names: Iterable[str], fits: Callable[[Any], bool], wanted: str, advice: str = ""
) -> None:
    """Raise a ValueError that names the first of these settings whose value does not fit."""
    for name in names:
        value = getattr(settings, name)
        if not fits(value):
            raise ValueError(f"{part}.{name} must be {wanted}, got {value}" + (f"; {advice}" if advice else ""))


def described(hint: Any) -> str:
    """Which values a hint takes, in words."""
    words = [word for kind in _kinds(hint) for word in _words(kind)]
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def typed(value: Any) -> str:
    """A value as ``--set`` takes it."""
    if value is None:
        return "none"
    return json.dumps(value, separators=(",", ":")) if isinstance(value, bool | list) else str(value)


def plain_value(text: str) -> Any:
    """The JSON value that a text stands for, else the text itself. Spaces around it or a line break keep it a text."""
    try:
        return json.loads(text) if text.isprintable() and text == text.strip() else text
    except (ValueError, RecursionError):
        return text


def _largest(value: Any) -> int | float:
    """The largest size of a number in a value; nan and infinite ones are refused by their kind."""
    if isinstance(value, list | tuple):
        return max(map(_largest, value), default=0)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != inf
    return abs(value) if is_number and value == value else 0


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other hint is its own only member."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [f"a list, each entry {described(get_args(kind)[0])}" if _is_sequence(kind) else WORDS[kind]]


def _fits(value: Any, hint: Any) -> bool:
    return any(_is_of(value, kind) for kind in _kinds(hint))


def _is_of(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if _is_sequence(kind):
        return isinstance(value, list | tuple) and all(_fits(entry, get_args(kind)[0]) for entry in value)
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max  # neither infinite nor nan
    return type(value) is kind and (kind is not str or value.isprintable())


def _is_sequence(kind: Any) -> bool:
    return get_origin(kind) in (list, tuple, Sequence)
