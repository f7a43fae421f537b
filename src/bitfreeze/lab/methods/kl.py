"""KL to the base: on new data, the network is to predict what the network of the start predicts."""

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Batch, Task
from .method import Method, Record, cross_entropy
from .registry import register_method


def divergence(old: Tensor, new: Tensor) -> Tensor:
    """Mean over samples and positions of KL(p_old || p_new), p the softmax of scores [n, ..., classes]."""
    logs = [scores.flatten(0, -2).log_softmax(-1) for scores in (old, new)]
    return F.kl_div(logs[1], logs[0], log_target=True, reduction="batchmean")


@register_method
@dataclass
class DivergenceFromBase(Method):
    """Adds strength * KL(p_base || p) on the new task's data to the loss.

    Where a task has a head of its own, which the base has not learned, that head reads the features of both.
    """

    record = Record(
        "kl",
        "KL to the base: on new data, a pull of the predictions towards those of the first weights",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "language"),
    )

    strength: Annotated[float, "weight of the divergence"] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["strength"], lambda s: s >= 0, "at least 0", "0 turns it off")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.base = copy.deepcopy(net).requires_grad_(False).eval()  # a run that continues makes the same one
        return super().build(net, tasks)

    def loss(self, batch: Batch) -> Tensor:
        task = batch.task.index
        new = self.net.scores(self.net.features(batch.x, task), task)
        with torch.no_grad():
            old = (self.net if self.net.heads else self.base).scores(self.base.features(batch.x, task), task)
        return cross_entropy(new, batch.y) + self.strength * divergence(old, new)

    def extra_bytes(self) -> int:
        return sum(value.nbytes for value in self.base.backbone.parameters())
