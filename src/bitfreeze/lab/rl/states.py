"""States of an environment as the samples of a task, for a method's ``end_task``."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..tasks import Split
from .environments import Environments


@dataclass(frozen=True)
class States(Split):
    """Observations and the actions taken in them. Observations are not normalised."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def none(cls, environments: Environments, device: torch.device) -> "States":
        """No states yet, in the shapes of these environments."""
        seen = torch.from_numpy(np.zeros((0, *environments.shape), environments.dtype))
        return cls(seen.to(device), environments.actions.empty(0).to(device))

    def take(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        return self.x[rows], self.y[rows]

    def extended(self, x: Tensor, y: Tensor) -> "States":
        """These states and further ones."""
        return States(torch.cat([self.x, x]), torch.cat([self.y, y]))
