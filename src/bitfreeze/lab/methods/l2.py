"""L2 to the start: a pull of the backbone towards the weights that training began with."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Task
from .method import Method, Record
from .pull import pull
from .registry import register_method


@register_method
@dataclass
class PullToStart(Method):
    """Adds strength / 2 * sum_i (theta_i - theta_0,i)^2 to the loss, where theta_0 are the backbone's first weights."""

    record = Record(
        "l2",
        "L2 to the start: a pull of the backbone towards its first weights, such as pretrained ones",
        paper="Li et al., ICML 2018 (L2-SP)",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "language"),
    )

    strength: Annotated[float, "lambda of the pull"] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["strength"], lambda s: s >= 0, "at least 0", "0 turns the pull off")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.pulled = list(net.backbone.parameters())
        self.start = [value.detach().clone() for value in self.pulled]  # a run that continues makes the same ones
        return super().build(net, tasks)

    def penalty(self, task: Task) -> Tensor | None:
        return self.strength * pull(self.pulled, self.start)

    def extra_bytes(self) -> int:
        return sum(value.nbytes for value in self.start)
