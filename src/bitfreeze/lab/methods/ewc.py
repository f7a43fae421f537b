"""Online elastic weight consolidation: a pull towards the last weights, scaled by the Fisher of all earlier tasks."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from ...model.parameters import find_parameters
from ..nets import MultiHead
from ..options import require
from ..tasks import Task, TaskData
from .method import ANY_SCENARIO, Record
from .pull import Named, nbytes, pull
from .registry import register_method
from .task_fisher import FisherMethod


@register_method
@dataclass
class ElasticWeightConsolidation(FisherMethod):
    """Adds strength / 2 * sum_i F_i (theta_i - theta*_i)^2 to the loss, where theta* are the last task's weights."""

    record = Record(
        "ewc",
        "online elastic weight consolidation: a pull towards the last weights, scaled by the Fisher",
        paper="Kirkpatrick et al., PNAS 2017; online form: Huszar 2018",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "language", "reinforcement"),
        scenarios=ANY_SCENARIO,
    )

    strength: Annotated[float, "lambda, for the Fisher per sample; a twentieth of the lambda of HAT's code"] = 250.0
    accumulate: Annotated[Literal["mean", "sum"], "combination of the Fishers of all tasks so far"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["strength"], lambda s: s >= 0, "at least 0", "0 turns the pull off")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.slots = find_parameters(net)
        self.anchor: Named = {}  # theta*
        self.fisher: Named = {}
        self.learned = 0  # number of tasks in the Fisher
        return super().build(net, tasks)

    def penalty(self, task: Task) -> Tensor | None:
        if not self.learned:
            return None
        names = [slot.name for slot in self.slots]
        parameters = [slot.parameter for slot in self.slots]
        return self.strength * pull(parameters, [self.anchor[n] for n in names], [self.fisher[n] for n in names])

    def end_task(self, task: Task, data: TaskData) -> None:
        new = self.task_fisher(task, data)
        self.learned += 1
        self.fisher = {name: self._accumulated(name, fisher) for name, fisher in new.items()}
        self.anchor = {slot.name: slot.parameter.detach().clone() for slot in self.slots}

    def _accumulated(self, name: str, new: Tensor) -> Tensor:
        if self.learned == 1:
            return new
        if self.accumulate == "sum":
            return self.fisher[name] + new
        return (self.fisher[name] * (self.learned - 1) + new) / self.learned

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned, "anchor": self.anchor, "fisher": self.fisher}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned, self.anchor, self.fisher = state["learned"], state["anchor"], state["fisher"]

    def extra_bytes(self) -> int:
        return nbytes(self.anchor, self.fisher)

    def report(self) -> dict[str, float]:
        """The largest pull, strength * F. It bounds the learning rate: SGD is stable only where lr * pull < 2."""
        if not self.learned:
            return {}
        return {"largest_pull": self.strength * max(value.max().item() for value in self.fisher.values())}
