"""HAT: each task opens and closes hidden units by hard attention, and later tasks do not change units in use."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..nets import MultiHead
from ..nets.gates import Gates
from ..options import require
from ..tasks import Batch, Task, TaskData
from .method import Method, Record
from .registry import register_method

BOUND = 6.0  # embeddings stay in [-BOUND, BOUND]


@register_method
@dataclass
class HardAttention(Method):
    """Trains gates on hidden units, an embedding for each task, and masks gradients of weights between units in use."""

    record = Record(
        "hat",
        "Hard Attention to the Task: nearly binary gates on units, and no gradient between units in use",
        paper="Serrà et al., ICML 2018",
        memory="O(T)",
    )

    lam: Annotated[float, "weight of the regulariser that keeps units free"] = 0.75
    smax: Annotated[float, "steepness of the gates at the end of an epoch and in evaluation"] = 400.0
    clip: Annotated[float | None, "largest norm of all gradients together; none does not clip"] = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = "hat masks gradients, which only plain SGD obeys"
        require("method", self, ["momentum", "weight_decay"], lambda x: x == 0, "0", plain)
        require("method", self, ["smax"], lambda s: s >= 1, "at least 1", "steepness rises from 1/smax to smax")
        require("method", self, ["lam"], lambda x: x >= 0, "at least 0")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.gates = net.gates = Gates(net, len(tasks), self.smax)
        self.learned = 0
        return super().build(net, tasks)

    def trained(self, task: Task) -> list[Tensor]:
        """Parameters of backbone and own head, and the task's own embedding."""
        own = [*self.net.backbone.parameters(), *self.net.of_task(task.index)]
        return [*(p for p in own if p.requires_grad), self.gates.embeddings[task.index]]

    def begin_task(self, task: Task, data: TaskData) -> None:
        """Find the units in use. They follow from the embeddings of earlier tasks, so no other state is kept."""
        self.used = self.gates.used(task.index)
        shares = self.gates.free_shares(self.used) if task.index > 0 else ()
        self.free = [(parameter, share) for parameter, share in shares if parameter.requires_grad]

    def observe(self, batch: Batch, progress: float) -> None:
        self.gates.annealed = 1 / self.smax + (self.smax - 1 / self.smax) * progress

    def penalty(self, task: Task) -> Tensor:
        """lam * share of the free units that this task takes, sum a (1 - used) / sum (1 - used)."""
        free = 1 - self.used  # where no unit is free, both sums are 0
        return self.lam * (self.gates.mask(task.index) * free).sum() / free.sum().clamp_min(1e-30)

    def before_step(self, task: Task) -> None:
        for parameter, share in self.free:
            assert parameter.grad is not None
            parameter.grad.mul_(share)
        embedding = self.gates.embeddings[task.index]
        assert embedding.grad is not None
        embedding.grad.mul_(compensation(embedding.detach(), self.gates.s, self.smax))

    @torch.no_grad()
    def after_step(self, task: Task) -> None:
        self.gates.embeddings[task.index].clamp_(-BOUND, BOUND)

    def end_task(self, task: Task, data: TaskData) -> None:
        self.learned = task.index + 1

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned = state["learned"]

    def extra_bytes(self) -> int:
        """Memory of the embeddings of the learned tasks."""
        return sum(e.nbytes for e in self.gates.embeddings[: self.learned])

    def report(self) -> dict[str, float]:
        return {"units_used": self.gates.used(self.learned).mean().item()}


def compensation(e: Tensor, s: float, smax: float) -> Tensor:
    """smax sigmoid'(e) / (s sigmoid'(s e)), the factor that makes an embedding's gradient the same for every s.

    sigmoid'(x) = 1 / (2 (cosh x + 1)). The argument of cosh is cut off at 50, before cosh overflows.
    """
    return smax / s * (torch.cosh((s * e).clamp(-50, 50)) + 1) / (torch.cosh(e) + 1)
