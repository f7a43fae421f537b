"""Reports on how getting data goes, for whatever shows them."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A line of text. While a file arrives, also how many of its bytes are there, and how many it should have."""

    text: str
    done: int | None = None
    total: int | None = None


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """Show nothing."""
