"""Autocast, turned off where arithmetic must keep the precision of the weights."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

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
    # asked first, because torch 2.6 raises where there is none
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ("cpu", "xla") if accelerator is None else ("cpu", "xla", accelerator.type)
