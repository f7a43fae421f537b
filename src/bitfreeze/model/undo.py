"""Putting things back, whatever happens, and one measurement at a time.

Ctrl-C can come between any two instructions, also while a ``finally`` runs. What must be put back is therefore put back
by two nested contexts: if Ctrl-C stops the inner one, the outer one does it again. Putting back twice changes nothing.
"""

import threading
from collections.abc import Callable
from contextlib import nullcontext

# A measurement changes the model for a while (hooks, modes) and torch's own settings, so two threads take turns.
ONE_AT_A_TIME = threading.RLock()

# The last context of a ``with``. Ctrl-C between the end of a block and the exit of its last context skips that exit.
LAST = nullcontext()


class Undo:
    """A context that calls a function at its end, also after an error. Use two of them."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self.undo = undo

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.undo()


def turn_over() -> Undo:
    """A context around ``ONE_AT_A_TIME`` that ends this thread's turn even where Ctrl-C came just before its end."""
    nested = ONE_AT_A_TIME._is_owned()  # type: ignore[attr-defined]  # threading.Condition asks this too

    def release() -> None:
        while not nested and ONE_AT_A_TIME._is_owned():  # type: ignore[attr-defined]
            ONE_AT_A_TIME.release()

    return Undo(release)
