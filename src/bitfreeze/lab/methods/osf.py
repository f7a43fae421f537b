"""OSF: the strongest singular directions of each linear layer of the backbone are fixed, and the others learn."""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Task, TaskData
from .linear_layers import replace_linear_layers
from .method import Method, Record
from .registry import register_method


class Decomposed(nn.Module):
    """A linear layer whose weight is W_high + U_low S_low V_low^T, the parts of its singular value decomposition.

    W_high, U_high, V_high and the bias are buffers, so that only U_low, S_low and V_low are trained. V is kept
    transposed: a row is a direction of the inputs.
    """

    high: Tensor  # W_high [outputs, inputs]
    u_high: Tensor  # [outputs, kept]
    v_high: Tensor  # [kept, inputs]
    bias: Tensor | None

    def __init__(self, layer: nn.Linear, share: float) -> None:
        super().__init__()
        weight = layer.weight.detach()
        directions = min(weight.shape)
        kept = int(share * directions)  # rounded down, as PEFT does
        self.register_buffer("high", torch.empty_like(weight))
        self.register_buffer("u_high", weight.new_empty(layer.out_features, kept))
        self.register_buffer("v_high", weight.new_empty(kept, layer.in_features))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self.u_low = nn.Parameter(weight.new_empty(layer.out_features, directions - kept))
        self.s_low = nn.Parameter(weight.new_empty(directions - kept))
        self.v_low = nn.Parameter(weight.new_empty(directions - kept, layer.in_features))
        self.decompose(weight)

    @torch.no_grad()
    def decompose(self, weight: Tensor) -> None:
        """Take the parts from ``weight`` anew: on the host and in float64, the same for every device.

        W_high is what rounded low parts leave of the weight, so that no rounding is lost from one task to the next.
        """
        u, s, v = torch.linalg.svd(weight.cpu().double(), full_matrices=False)
        kept = len(self.v_high)
        self.u_high.copy_(u[:, :kept])
        self.v_high.copy_(v[:kept])
        self.u_low.copy_(u[:, kept:])
        self.s_low.copy_(s[kept:])
        self.v_low.copy_(v[kept:])
        self.high.copy_(weight - self.low())

    def low(self) -> Tensor:
        return (self.u_low * self.s_low) @ self.v_low

    @property
    def weight(self) -> Tensor:
        return self.high + self.low()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def project(self) -> None:
        """Remove from the gradients of U_low and V_low what lies along U_high and V_high."""
        if self.u_low.grad is not None:
            self.u_low.grad -= self.u_high @ (self.u_high.T @ self.u_low.grad)
        if self.v_low.grad is not None:
            self.v_low.grad -= (self.v_low.grad @ self.v_high.T) @ self.v_high


@register_method
@dataclass
class OrthogonalSubspaceFineTuning(Method):
    """Fixes the largest singular values of each linear layer of the backbone with their directions, task by task."""

    record = Record(
        "osf",
        "OSF: the strongest singular directions of each linear layer are fixed, and the others learn beside them",
        paper="Nayak et al., 2025",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "language"),
    )

    share: Annotated[float, "share of a layer's singular directions that is fixed, the strongest first"] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["share"], lambda s: 0 <= s <= 1, "from 0 to 1", "0 fixes no direction")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.layers = replace_linear_layers(net, self.record.name, lambda layer: Decomposed(layer, self.share))
        return super().build(net, tasks)

    def before_step(self, task: Task) -> None:
        for layer in self.layers:
            layer.project()

    @torch.no_grad()
    def end_task(self, task: Task, data: TaskData) -> None:
        """Decompose the weights for the next task. ``begin_task`` is called again where a run continues."""
        for layer in self.layers:
            layer.decompose(layer.weight)

    def extra_bytes(self) -> int:
        """Memory of the parts beside W_high, which takes as much as the weight did."""
        return sum(
            part.nbytes
            for layer in self.layers
            for part in (layer.u_high, layer.v_high, layer.u_low, layer.s_low, layer.v_low)
        )
