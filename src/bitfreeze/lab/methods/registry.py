"""Methods by name."""

from collections.abc import Mapping
from typing import Any

from ..options import checked, options_of
from ..registry import Registry
from .method import Method

methods = Registry[type[Method]]("method")


def register_method(method: type[Method]) -> type[Method]:
    """Class decorator: every command then knows the method by ``method.record.name``.

    Args:
        method: a dataclass that inherits from ``Method`` and has a ``record``.

    Returns:
        ``method`` itself.
    """
    return methods.register(method.record.name, method)


def make_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method of this name. ``options`` are values of its fields; the other fields keep their defaults."""
    method = methods[name]
    return method(**checked("method", options_of(method), options))
