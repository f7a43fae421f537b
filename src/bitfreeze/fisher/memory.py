"""Limit of the memory that an estimate uses for per-sample gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

DEFAULT = 256 * 2**20

_limit: ContextVar[int] = ContextVar("bytes for per-sample gradients", default=DEFAULT)


@contextmanager
def memory_limit(limit: int) -> Iterator[None]:
    """Set the limit, in bytes, inside the context."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def row_chunks(rows: int, bytes_per_row: int, ceiling: int | None = None) -> Iterator[slice]:
    """Slices of as many rows as fit into the limit, at least one. ``ceiling``: a tighter limit, for speed."""
    limit = _limit.get() if ceiling is None else min(ceiling, _limit.get())
    step = max(1, limit // max(1, bytes_per_row))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
