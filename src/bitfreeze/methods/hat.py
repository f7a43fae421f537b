"""HAT: each task opens and closes hidden units by hard attention, and later tasks leave what is in use alone."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..nets import MultiHead
from ..nets.gates import Gates
from ..options import option
from ..streams import Task, TaskData
from .method import Batch, Method, Record
from .registry import register_method


@register_method
@dataclass
class HardAttention(Method):
    """Gates on hidden units, an embedding a task; gradients of weights between units in use are masked."""

    record = Record(
        "hat",
        "Hard Attention to the Task: nearly binary gates on units, and no gradient between units in use",
        paper="Serrà et al., ICML 2018",
        memory="O(T)",
    )

    lam: float = option(0.75, "weight of the regulariser that keeps units free")
    smax: float = option(400.0, "steepness of the gates at the end of an epoch and in evaluation")
    bound: float = option(6.0, "embeddings stay within +- this")
    clip: float | None = option(10000.0, "largest norm of all gradients together", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum or self.weight_decay:
            raise ValueError("hat masks gradients, which only plain SGD obeys: leave momentum and weight_decay at 0")
        if not self.smax >= 1:
            raise ValueError(
                f"smax={self.smax} is out of range: steepness rises from 1/smax to smax, so give 1 or more"
            )
        if not self.lam >= 0:
            raise ValueError(f"lam={self.lam} is out of range: give 0 or more")
        if not self.bound > 0:
            raise ValueError(f"bound={self.bound} is out of range: embeddings need room, give more than 0")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.gates = net.gates = Gates(net, len(tasks), self.smax)
        self.learned = 0
        return super().build(net, tasks)

    def trained(self, task: Task) -> list[Tensor]:
        """Embeddings of other tasks are left out too."""
        own = [*self.net.backbone.parameters(), *self.net.of_task(task.index)]
        return [*(p for p in own if p.requires_grad), self.gates.embeddings[task.index]]

    def begin_task(self, task: Task, data: TaskData) -> None:
        """The units in use follow from the embeddings of earlier tasks, so nothing else need be kept."""
        self.used = self.gates.used(task.index)
        shares = self.gates.free_shares(self.used) if task.index > 0 else ()
        self.free = [(parameter, share) for parameter, share in shares if parameter.requires_grad]

    def observe(self, batch: Batch, progress: float) -> None:
        self.gates.annealed = 1 / self.smax + (self.smax - 1 / self.smax) * progress

    def penalty(self, task: Task) -> Tensor:
        """The share of the free units that this task takes: sum a (1 - used) / sum (1 - used)."""
        free = 1 - self.used
        # where none is free, the sum above is 0 too
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
        self.gates.embeddings[task.index].clamp_(-self.bound, self.bound)

    def end_task(self, task: Task, data: TaskData) -> None:
        self.learned = task.index + 1

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned = state["learned"]

    def extra_bytes(self) -> int:
        """The embeddings of the tasks learned."""
        return sum(e.nbytes for e in self.gates.embeddings[: self.learned])

    def report(self) -> dict[str, float]:
        return {"units_used": self.gates.used(self.learned).mean().item()}


def compensation(e: Tensor, s: float, smax: float) -> Tensor:
    """smax sigmoid'(e) / (s sigmoid'(s e)): makes an embedding's gradient the same for every s.

    sigmoid'(x) = 1 / (2 (cosh x + 1)), and beyond 50 cosh is cut off before it overflows.
    """
    return smax / s * (torch.cosh((s * e).clamp(-50, 50)) + 1) / (torch.cosh(e) + 1)
