"""SGP: steps along the inputs of earlier tasks are scaled down by how much each direction matters."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Task
from .gpm import GradientProjectionMemory
from .input_space import Inputs
from .method import ANY_SCENARIO, Record
from .pull import Named, nbytes
from .registry import register_method


@register_method
@dataclass
class ScaledGradientProjection(GradientProjectionMemory):
    """GPM that removes, along each direction of a basis, only the share of the gradient that is its importance."""

    record = Record(
        "sgp",
        "Scaled Gradient Projection: steps along the inputs of earlier tasks are scaled by the importance of each",
        paper="Saha and Roy, AAAI 2023",
        memory="O(T), bounded",
        scenarios=ANY_SCENARIO,
    )

    alpha: Annotated[float, "scale of importances: 0 is linear in singular values, a large one makes all 1, as gpm"] = (
        10.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["alpha"], lambda a: a >= 0, "at least 0")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.importances: Named = {}  # [k] of each layer
        return super().build(net, tasks)

    def shares(self, name: str) -> Tensor:
        return self.importances[name]

    def extend(self, name: str, basis: Tensor, inputs: Inputs, threshold: float) -> Tensor:
        """Also add this task's importances to those of earlier tasks."""
        old = inputs.energy_along(basis).sqrt()
        new = super().extend(name, basis, inputs, threshold)
        now = importance(torch.cat([old, new]), self.alpha).to(basis)
        if len(old):
            now[: len(old)] += self.importances[name]
        self.importances[name] = now.clamp_(max=1)
        return new

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "importances": dict(self.importances)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.importances = dict(state["importances"])

    def extra_bytes(self) -> int:
        return super().extra_bytes() + nbytes(self.importances)

    def report(self) -> dict[str, float]:
        held = [values.mean().item() for values in self.importances.values() if len(values)]
        return super().report() | ({"mean_importance": sum(held) / len(held)} if held else {})


def importance(values: Tensor, alpha: float) -> Tensor:
    """(alpha + 1) s / (alpha s + max s) of singular values s: 1 for the largest, 0 for 0."""
    largest = values.max() if len(values) else values.new_tensor(1.0)
    return (alpha + 1) * values / (alpha * values + largest).clamp_min(torch.finfo(values.dtype).tiny)
