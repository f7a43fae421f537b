"""Ratios of wall times: both sides interleaved in one run, the best of several, on the same machine and threads."""

import time
from collections.abc import Callable

clock = time.perf_counter  # or, where a machine is busy with other things and one thread is used, time.process_time


def seconds(action: Callable[[], object]) -> float:
    started = clock()
    action()
    return clock() - started


def ratio(ours: Callable[[], object], plain: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Best time of ours by best time of plain, and both times in seconds. A first round warms up and is not counted."""
    ours(), plain()
    times = [(seconds(plain), seconds(ours)) for _ in range(rounds)]
    best_plain, best_ours = (min(column) for column in zip(*times, strict=True))
    return best_ours / best_plain, best_ours, best_plain


def best_processor_seconds(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best processor time of each action, all of them one after another in each round. A first round warms up."""
    times = [{name: _processor_seconds(action) for name, action in actions.items()} for _ in range(rounds + 1)]
    return {name: min(row[name] for row in times[1:]) for name in actions}


def _processor_seconds(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started
