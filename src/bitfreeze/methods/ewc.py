"""Online elastic weight consolidation: a pull towards the last weights, as strong as the Fisher of the past says."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..nets import MultiHead
from ..options import option
from ..parameters import find_parameters
from ..streams import Task, TaskData
from .method import Method, Record
from .pull import Named, nbytes, pull, require_strength
from .registry import register_method
from .task_fisher import require_fisher_options, task_fisher


@register_method
@dataclass
class ElasticWeightConsolidation(Method):
    """Adds strength / 2 * sum_i F_i (theta_i - theta*_i)^2 to the loss: theta* are the weights after the last task."""

    record = Record(
        "ewc",
        "online elastic weight consolidation: a pull towards the last weights, scaled by the Fisher",
        paper="Kirkpatrick et al., PNAS 2017; online form: Huszar 2018",
        memory="O(1)",
        data_parallel=True,
        trainers=("supervised", "reinforcement"),
    )

    strength: float = option(250.0, "lambda, for the Fisher per sample: a twentieth of that of HAT's code")
    accumulate: str = option("mean", "the Fisher of all tasks so far: their mean or their sum")
    samples: int | None = option(None, "training samples of a task for its Fisher; none: all")
    labels: str = option("exact", "of the Fisher: exact (averaged over), sample (drawn from the model), true")
    fisher_batch: int = option(500, "samples at a time for the Fisher; the result does not depend on it")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_strength(self.strength)
        require_fisher_options(self.samples, self.labels, self.fisher_batch)
        if self.accumulate not in ("mean", "sum"):
            raise ValueError(f"accumulate={self.accumulate!r} is not known: use 'mean' or 'sum'")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.slots = find_parameters(net)
        self.anchor: Named = {}  # theta*
        self.fisher: Named = {}
        self.learned = 0  # tasks that the Fisher is of
        return super().build(net, tasks)

    def penalty(self, task: Task) -> Tensor | None:
        if not self.learned:
            return None
        names = [slot.name for slot in self.slots]
        parameters = [slot.parameter for slot in self.slots]
        return self.strength * pull(parameters, [self.anchor[n] for n in names], [self.fisher[n] for n in names])

    def end_task(self, task: Task, data: TaskData) -> None:
        new = task_fisher(self, task, data, samples=self.samples, labels=self.labels, batch=self.fisher_batch)
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
        """SGD is stable only where lr * strength * F < 2, so the largest pull bounds the learning rate."""
        if not self.learned:
            return {}
        return {"largest_pull": self.strength * max(value.max().item() for value in self.fisher.values())}
