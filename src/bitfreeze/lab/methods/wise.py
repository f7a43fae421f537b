"""Averaging with the base: after each task the backbone goes part of the way back to the weights of the start."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import nn

from ...blip.running_statistics import with_running_statistics
from ..nets import MultiHead
from ..options import require
from ..tasks import Task, TaskData
from .method import Method, Record
from .registry import register_method


@register_method
@dataclass
class AveragingWithBase(Method):
    """Trains plainly, and sets theta = (1 - share) theta_0 + share theta at the end of each task."""

    record = Record(
        "wise",
        "averaging with the base: after each task the backbone is averaged with its first weights",
        paper="Wortsman et al., CVPR 2022 (WiSE-FT)",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "language"),
    )

    share: Annotated[float, "alpha: share of the fine-tuned weights in the average"] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["share"], lambda a: 0 <= a <= 1, "from 0 to 1", "1 averages nothing")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        norms = with_running_statistics(net.backbone.modules())  # whose statistics belong to the weights
        statistics = [b for norm in norms for b in norm.buffers(recurse=False) if b.is_floating_point()]
        self.averaged = [*net.backbone.parameters(), *statistics]
        self.start = [value.detach().clone() for value in self.averaged]  # a run that continues makes the same ones
        return super().build(net, tasks)

    @torch.no_grad()
    def end_task(self, task: Task, data: TaskData) -> None:
        for value, start in zip(self.averaged, self.start, strict=True):
            value.copy_(torch.lerp(start, value, self.share))

    def extra_bytes(self) -> int:
        return sum(value.nbytes for value in self.start)
