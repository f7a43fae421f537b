"""Autocast, turned off where arithmetic must keep the precision of the weights."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from .devices import accelerator

P = ParamSpec("P")
R = TypeVar("R")


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """The function with autocast off on every kind of device, because a clamp in bfloat16 holds nothing exactly.

    Steps and clamps are often called inside of a user's autocast block.
    """

    @wraps(function)
    def precise(*args: P.args, **kwargs: P.kwargs) -> R:
        kinds = [kind for kind in _kinds_of_device() if torch.is_autocast_enabled(kind)]
        if not kinds:
            return function(*args, **kwargs)
        with ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return precise


def _kinds_of_device() -> tuple[str, ...]:
    found = accelerator()
    return ("cpu", "xla") if found is None else ("cpu", "xla", found.type)
