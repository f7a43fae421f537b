"""Methods by name."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .method import Method

methods: dict[str, type[Method]] = {}


def register_method(method: type[Method]) -> type[Method]:
    """Class decorator: the method is then known to every command."""
    methods[method.record.name] = method
    return method


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    known = [option.name for option in fields(methods[name])]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: it has {', '.join(known)}")
    return methods[name](**options)
