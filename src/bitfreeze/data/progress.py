"""What is going on, for whoever shows it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A line of text; while bytes arrive also how many there are, and of how many if the server said."""

    text: str
    done: int | None = None
    total: int | None = None


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """For those who do not want to know."""
