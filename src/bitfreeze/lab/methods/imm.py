"""Incremental moment matching, mode form: after a task, old and new weights are averaged, weighted by their Fishers."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ...model.parameters import find_parameters
from ..nets import MultiHead
from ..options import require
from ..tasks import Task, TaskData
from .method import ANY_SCENARIO, Record
from .pull import Named, nbytes, pull
from .registry import register_method
from .task_fisher import FisherMethod


def merged(old: Tensor, new: Tensor, old_fisher: Tensor, new_fisher: Tensor) -> Tensor:
    """(F_old theta_old + F_new theta_new) / (F_old + F_new), and theta_new where both Fishers are 0.

    Computed as an interpolation, so that equal weights stay the same to the last bit.
    """
    total = old_fisher + new_fisher
    share = torch.where(total > 0, new_fisher / total, 1.0)
    return torch.lerp(old, new, share)


@register_method
@dataclass
class IncrementalMomentMatching(FisherMethod):
    """Adds strength / 2 * sum_i (theta_i - theta_old_i)^2 to the loss, and merges old and new weights after a task."""

    record = Record(
        "imm",
        "incremental moment matching: old and new weights are merged by their Fishers after each task",
        paper="Lee et al., NIPS 2017",
        memory="O(1)",
        data_parallel=True,
        scenarios=ANY_SCENARIO,
    )

    strength: Annotated[float, "lambda of the pull towards the weights after the last task"] = 0.01
    merge: Annotated[bool, "write the merged weights back; released code has only the pull"] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["strength"], lambda s: s >= 0, "at least 0", "0 turns the pull off")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.slots = find_parameters(net)
        self.old: Named = {}  # merged weights after the last task
        self.fisher: Named = {}  # summed over all tasks so far: the precision of the merged weights
        return super().build(net, tasks)

    def penalty(self, task: Task) -> Tensor | None:
        if not self.old:
            return None
        return self.strength * pull([s.parameter for s in self.slots], [self.old[s.name] for s in self.slots])

    def end_task(self, task: Task, data: TaskData) -> None:
        if self.merge:
            self._merge(self.task_fisher(task, data))
        self.old = {slot.name: slot.parameter.detach().clone() for slot in self.slots}

    @torch.no_grad()
    def _merge(self, new: Named) -> None:
        if self.fisher:
            for slot in self.slots:
                name, weights = slot.name, slot.parameter
                weights.copy_(merged(self.old[name], weights, self.fisher[name], new[name]))
        self.fisher = {name: self.fisher[name] + new[name] if self.fisher else new[name] for name in new}

    def state_dict(self) -> dict[str, Any]:
        return {"old": self.old, "fisher": self.fisher}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.old, self.fisher = state["old"], state["fisher"]

    def extra_bytes(self) -> int:
        return nbytes(self.old, self.fisher)
