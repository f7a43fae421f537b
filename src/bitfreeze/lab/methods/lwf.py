"""Learning without forgetting: on the new task's data, the earlier heads keep their outputs of before."""

import copy
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Batch, Task, TaskData
from .method import ANY_SCENARIO, Method, Record
from .registry import register_method


def distillation(new: Tensor, old: Tensor, temperature: float = 1.0) -> Tensor:
    """Mean over samples of -sum_c q_c log p_c: q and p are the softmax of old and new scores / temperature."""
    return F.cross_entropy(new / temperature, (old / temperature).softmax(1))


@register_method
@dataclass
class LearningWithoutForgetting(Method):
    """Cross-entropy + strength * (sum over earlier heads of the distillation from the network before this task).

    Where tasks share a head there is one distillation, over the classes that the network had before this task.
    """

    record = Record(
        "lwf",
        "learning without forgetting: distils the earlier heads of the previous network on new data",
        paper="Li and Hoiem, ECCV 2016",
        memory="O(1)",
        moves_old_heads=True,
        data_parallel=True,
        scenarios=ANY_SCENARIO,
    )

    strength: Annotated[float, "lambda: weight of each earlier head's distillation"] = 2.0
    temperature: Annotated[float, "temperature of the softmax in the distillation"] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["strength"], lambda s: s >= 0, "at least 0", "0 turns distillation off")
        require("method", self, ["temperature"], lambda t: t > 0, "greater than 0", "1 leaves the scores as they are")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        if net.goes_by_task:
            raise ValueError(
                "lwf needs features that are the same for every task, and those of this network differ; "
                "use network.statistics=first"
            )
        self.previous: MultiHead | None = None
        self.learned: list[int] = []  # tasks whose heads are distilled
        return super().build(net, tasks)

    def loss(self, batch: Batch) -> Tensor:
        features = self.net.features(batch.x, batch.task.index)
        loss = F.cross_entropy(self.net.scores(features, batch.task.index), batch.y)
        if self.previous is None:
            return loss
        with torch.no_grad():
            before = self.previous.features(batch.x, batch.task.index)
            targets = {k: self.previous.scores(before, k) for k in self._distilled(batch.task)}
        terms = [
            distillation(self.net.scores(features, k)[:, : old.shape[1]], old, self.temperature)
            for k, old in targets.items()
        ]
        return loss + self.strength * torch.stack(terms).sum() if terms else loss

    def _distilled(self, task: Task) -> list[int]:
        """Tasks whose scores are distilled: all earlier ones, or one of them where all have the same scores."""
        earlier = [k for k in self.learned if k != task.index]
        return earlier if self.net.scenario == "task" else earlier[-1:]

    def end_task(self, task: Task, data: TaskData) -> None:
        self.learned = [*self.learned, task.index]
        self.previous = self._frozen_copy()

    def _frozen_copy(self) -> MultiHead:
        frozen = copy.deepcopy(self.net).requires_grad_(False).eval()
        frozen.seen = len(self.learned)
        return frozen

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned, "previous": {} if self.previous is None else self.previous.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned = state["learned"]
        if self.learned:
            self.previous = self._frozen_copy()
            self.previous.load_state_dict(state["previous"])

    def extra_bytes(self) -> int:
        return 0 if self.previous is None else sum(value.nbytes for value in self.previous.state_dict().values())
