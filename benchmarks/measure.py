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
