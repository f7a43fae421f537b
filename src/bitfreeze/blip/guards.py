"""Guards: the parts of a BLIP that hold the model to what earlier tasks need.

A guard measures the data at a task's end, and moves the weights back after a step. ``Intervals`` holds weight by
weight, ``Directions`` along the directions that a layer's data use, ``Levels`` the response of units to the mean input.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.optim import Optimizer

from ..fisher import FisherEstimate
from ..model.ranks import Ranks
from .consolidation import TensorReport

Look = Callable[..., FisherEstimate]  # one pass over the task's data: look(statistics=..., skip=..., samples=...)


@dataclass
class Measured:
    """What a guard has found at a task's end. Nothing has changed yet: ``Guard.commit`` takes it up."""

    after: Any
    reports: dict[str, TensorReport] = field(default_factory=dict)
    histogram: list[int] = field(default_factory=list)
    estimate: FisherEstimate | None = None


class Guard(Protocol):
    """What a BLIP asks of each of its guards."""

    passes: int  # over the data, at a task's end

    def bind(self) -> None:
        """Look for the watched parameters anew."""

    def hold_(self, optimizer: Optimizer | None = None) -> bool:
        """Move the parameters that ``optimizer`` stepped, or all, to where they may be. Returns whether any are held.

        A second call changes nothing.
        """

    def measure(self, look: Look, ranks: Ranks) -> Measured:
        """Look at the data of a task that ends. The guard stays as it is."""

    def commit(self, measured: Measured) -> None:
        """Take up what was measured."""

    def nbytes(self, cache: bool) -> int:
        """Bytes of state, with caches if ``cache``."""

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        """State of the guard: tensors and plain scalars, under keys of its own."""

    def load_state_dict(self, state: Mapping[str, Any], new_name: Callable[[str], str]) -> None:
        """Take up a saved state. ``new_name`` maps saved names of parameters to those of this model."""
