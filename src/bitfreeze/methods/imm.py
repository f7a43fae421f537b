"""Incremental moment matching, mode form: after a task, old and new weights are averaged by their Fishers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import option
from ..parameters import find_parameters
from ..streams import Task, TaskData
from .method import Method, Record
from .pull import Named, nbytes, pull, require_strength
from .registry import register_method
from .task_fisher import require_fisher_options, task_fisher


def merged(old: Tensor, new: Tensor, old_fisher: Tensor, new_fisher: Tensor) -> Tensor:
    """(F_old theta_old + F_new theta_new) / (F_old + F_new), and theta_new where both Fishers are 0.

    As an interpolation, so that equal weights stay as they are to the last bit.
    """
    total = old_fisher + new_fisher
    share = torch.where(total > 0, new_fisher / total, 1.0)
    return torch.lerp(old, new, share)


@register_method
@dataclass
class IncrementalMomentMatching(Method):
    """While training, strength / 2 * sum_i (theta_i - theta_old_i)^2 is added to the loss; after it, weights merge."""

    record = Record(
        "imm",
        "incremental moment matching: old and new weights are merged by their Fishers after each task",
        paper="Lee et al., NIPS 2017",
        memory="O(1)",
        data_parallel=True,
    )

    strength: float = option(0.01, "lambda of the pull towards the weights after the last task")
    merge: bool = option(True, "write the merged weights back; released code has only the pull")
    samples: int | None = option(None, "training samples of a task for its Fisher; none: all")
    labels: str = option("exact", "of the Fisher: exact (averaged over), sample (drawn from the model), true")
    fisher_batch: int = option(500, "samples at a time for the Fisher; the result does not depend on it")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_strength(self.strength)
        require_fisher_options(self.samples, self.labels, self.fisher_batch)

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.slots = find_parameters(net)
        self.old: Named = {}  # weights after the last task: merged
        self.fisher: Named = {}  # summed over all tasks so far: the precision of the merged weights
        return super().build(net, tasks)

    def penalty(self, task: Task) -> Tensor | None:
        if not self.old:
            return None
        return self.strength * pull([s.parameter for s in self.slots], [self.old[s.name] for s in self.slots])

    def end_task(self, task: Task, data: TaskData) -> None:
        if self.merge:
            new = task_fisher(self, task, data, samples=self.samples, labels=self.labels, batch=self.fisher_batch)
            self._merge(new)
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
