"""States of an environment as the samples of a task, for what a method does at its end."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..streams import Split
from .environments import Environments


@dataclass(frozen=True)
class States(Split):
    """Observations and the actions taken in them; they go to the network as they are, bytes or numbers."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def none(cls, environments: Environments) -> "States":
        kind = torch.uint8 if environments.dtype == "uint8" else torch.float32
        return cls(torch.zeros(0, *environments.shape, dtype=kind), environments.actions.empty(0))

    def take(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        return self.x[rows], self.y[rows]

    def extended(self, x: Tensor, y: Tensor) -> "States":
        return States(torch.cat([self.x, x]), torch.cat([self.y, y]))
