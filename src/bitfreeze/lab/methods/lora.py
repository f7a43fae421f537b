"""LoRA: the backbone's linear layers are fixed, and a product of two small matrices is added to each."""

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


class LowRank(nn.Module):
    """A linear layer whose weight is W + scale * B A. Only A and B are trained."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), scale
        self.down = nn.Parameter(torch.empty(rank, layer.in_features, device=layer.weight.device))  # A
        self.up = nn.Parameter(torch.empty(layer.out_features, rank, device=layer.weight.device))  # B
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Begin anew: B = 0, so that the layer is the fixed one. A is drawn on the host, the same for every device."""
        self.down.copy_(nn.init.kaiming_uniform_(torch.empty(self.down.shape), a=5**0.5))
        nn.init.zeros_(self.up)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.scale * F.linear(F.linear(x, self.down), self.up)
        return y

    @torch.no_grad()
    def merge(self) -> None:
        """Add the product to the weight, and begin anew."""
        self.layer.weight += self.scale * (self.up @ self.down)
        self.reset()


@register_method
@dataclass
class LowRankAdaptation(Method):
    """Trains an adapter of low rank in each linear layer of the backbone. It is merged when its task ends."""

    record = Record(
        "lora",
        "LoRA: an adapter of low rank in each linear layer, merged when its task ends",
        paper="Hu et al., ICLR 2022",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "language"),
    )

    rank: Annotated[int, "rows of A and columns of B"] = 8
    alpha: Annotated[float, "the product B A is multiplied by alpha / rank"] = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["rank"], lambda r: r >= 1, "at least 1")
        require("method", self, ["alpha"], lambda a: a > 0, "greater than 0")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.adapters = replace_linear_layers(
            net, self.record.name, lambda layer: LowRank(layer, self.rank, self.alpha / self.rank)
        )
        return super().build(net, tasks)

    def end_task(self, task: Task, data: TaskData) -> None:
        for adapter in self.adapters:
            adapter.merge()

    def extra_bytes(self) -> int:
        """Memory of the adapters, which are merged but stay in the network."""
        return sum(parameter.nbytes for adapter in self.adapters for parameter in adapter.parameters())
