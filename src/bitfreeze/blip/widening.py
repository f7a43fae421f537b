"""How wide intervals are: they widen while a task stays within its tolerance.

With a width of 1, all coordinates at the edges of their intervals cost the earlier tasks the tolerance. Few coordinates
ever go there: SGD spends a tenth of the tolerance, Adam most of it. So the width grows while the estimated cost is
below half the tolerance, and shrinks as soon as the cost is above all of it, by a hundredth. It is never below 1.
"""

from dataclasses import dataclass
from math import sqrt

GROWTH = 1.01  # a step
WIDEST = 100.0
TOO_MUCH = 1.01  # tolerances: to come closer to 1 takes ever more clamps


@dataclass
class Widening:
    """The width in force, and the number of steps since it was last set."""

    width: float = 1.0
    steps: int = 0

    def set(self, spent: float) -> None:
        """Set the width by the share of the tolerance that the task has spent so far."""
        if spent > TOO_MUCH:
            self.width = max(1.0, self.width / sqrt(spent))
        elif spent < 0.5:
            self.width = min(WIDEST, self.width * GROWTH**self.steps)
        self.steps = 0
