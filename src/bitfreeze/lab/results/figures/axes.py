"""Axes that end at round numbers."""

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Any

ROUND = (1, 2, 5)  # first digits of the numbers that an axis shows


def round_ticks(low: float, high: float, count: int = 5, most: float | None = None) -> list[float]:
    """About ``count`` round numbers at even distances that enclose low and high; none is above ``most``."""
    if high - low <= 1e-9 * max(1.0, abs(high)):
        low, high = low - 1, high + 1 if most is None else min(high + 1, most)
    wanted = (high - low) / (count - 1)
    power = 10.0 ** floor(log10(wanted))
    step = next(digit * power for digit in (*ROUND, 10, 20) if digit * power >= 0.85 * wanted)
    ticks = [round(k * step, 12) for k in range(floor(low / step + 1e-9), ceil(high / step - 1e-9) + 1)]
    return ticks if most is None else [tick for tick in ticks if tick <= most + 1e-9]


def log_ticks(low: float, high: float) -> list[float]:
    """The numbers 1, 2, 5, 10, 20 ... that enclose low and high; only powers of ten where these would be many."""
    digits = ROUND if log10(high / low) < 2.5 else (1,)
    powers = range(floor(log10(low)) - 1, ceil(log10(high)) + 2)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    first = max(k for k, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    last = min(k for k, tick in enumerate(ticks) if tick >= high * (1 - 1e-9))
    return ticks[first : max(last, first + 1) + 1]


def show_ticks(axes: Any, along: str, ticks: Sequence[float], margin: float = 0.04) -> None:
    """End an axis, ``x`` or ``y``, at the first and last of these numbers. A margin keeps marks at the end whole."""
    low, high = ticks[0], ticks[-1]
    is_log = getattr(axes, f"get_{along}scale")() == "log"
    if is_log:
        room = (high / low) ** margin
        limits = (low / room, high * room)
    else:
        limits = (low - margin * (high - low), high + margin * (high - low))
    getattr(axes, f"set_{along}lim")(*limits)
    getattr(axes, f"set_{along}ticks")(ticks, [f"{tick:,.10g}" for tick in ticks])
    if is_log:
        axes.minorticks_off()
