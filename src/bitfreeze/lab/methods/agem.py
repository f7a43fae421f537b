"""A-GEM: to first order, no step raises the loss on a memory of earlier samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Batch, Task
from .method import ANY_SCENARIO, Method, Record
from .registry import register_method

REFERENCE_BATCH = 256  # samples drawn from memory for each step, over all earlier tasks


def project_(gradient: Sequence[Tensor], reference: Sequence[Tensor]) -> None:
    """g <- g - (g.r / r.r) r where g.r < 0, with all tensors taken as one vector."""
    along, square = _dot(gradient, reference), _dot(reference, reference)
    if along < 0 < square:  # r.r is 0 for a reference of 0, and for one so small that its square underflows
        torch._foreach_add_(list(gradient), list(reference), alpha=-(along / square))


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return sum(torch.dot(x.flatten(), y.flatten()).item() for x, y in zip(a, b, strict=True))


class Rings:
    """The last samples of each class of one task."""

    def __init__(self, x: Tensor, seen: Tensor) -> None:
        self.x = x  # [class, place, ...]
        self.seen = seen  # [class]: number of samples so far

    @classmethod
    def empty(cls, classes: int, places: int, like: Tensor) -> "Rings":
        return cls(like.new_empty(classes, places, *like.shape[1:]), like.new_zeros(classes, dtype=torch.long))

    def __len__(self) -> int:
        return int(self.seen.clamp(max=self.x.shape[1]).sum())

    def add(self, x: Tensor, y: Tensor) -> None:
        """Put samples in. Sample n of a class takes place n modulo the ring's length."""
        classes, places = self.x.shape[:2]
        own = F.one_hot(y, classes)
        number = own.cumsum(0).gather(1, y[:, None])[:, 0] - 1  # of a sample within its class and this batch
        total = own.sum(0)
        stays = number >= total[y] - places  # so that no two samples of this batch take the same place
        x, y, number = x[stays], y[stays], number[stays]
        self.x[y, (self.seen[y] + number) % places] = x
        self.seen += total

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and labels. ``rows`` index the kept samples."""
        held = (torch.arange(self.x.shape[1], device=self.x.device) < self.seen[:, None]).nonzero()[rows]
        return self.x[held[:, 0], held[:, 1]], held[:, 0]


@register_method
@dataclass
class AveragedGradientEpisodicMemory(Method):
    """Removes from each gradient the component that would raise the loss of a batch from memory."""

    record = Record(
        "agem",
        "averaged gradient episodic memory: gradients that would harm stored samples are projected",
        paper="Chaudhry et al., ICLR 2019",
        memory="O(T)",
        replays=True,
        moves_old_heads=True,
        scenarios=ANY_SCENARIO,
    )

    per_class: Annotated[int, "samples kept of each class"] = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["per_class"], lambda n: n >= 1, "at least 1")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.tasks = tasks
        self.rings: dict[int, Rings] = {}  # by task; the current task's ring is filled, and read from the next task on
        return super().build(net, tasks)

    def observe(self, batch: Batch, progress: float) -> None:
        task = batch.task
        if task.index not in self.rings:
            self.rings[task.index] = Rings.empty(task.classes, self.per_class, batch.x)
        self.rings[task.index].add(batch.x, batch.y - task.first_label)

    def before_step(self, task: Task) -> None:
        memory = self._draw(task)
        if not memory:
            return
        trained = [p for p in self.net.parameters() if p.requires_grad]
        with self.passes():
            loss = self._memory_loss(memory)
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        pairs = [(p, r) for p, r in zip(trained, found, strict=True) if r is not None]
        for parameter, _ in pairs:
            if parameter.grad is None:  # the head of an earlier task, which only the projection moves
                parameter.grad = torch.zeros_like(parameter)
        project_([p.grad for p, _ in pairs if p.grad is not None], [r for _, r in pairs])

    def _draw(self, task: Task) -> dict[int, tuple[Tensor, Tensor]]:
        """Samples and labels of earlier tasks by task, drawn without replacement."""
        earlier = {k: rings for k, rings in self.rings.items() if k != task.index}
        rows = torch.randperm(sum(map(len, earlier.values())))[:REFERENCE_BATCH]
        drawn, start = {}, 0
        for index, rings in earlier.items():
            mine = rows[(rows >= start) & (rows < start + len(rings))] - start
            start += len(rings)
            if len(mine):
                x, y = rings.take(mine)
                drawn[index] = x, y + self.tasks[index].first_label
        return drawn

    def _memory_loss(self, memory: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """Mean loss over these samples, each with its own head."""
        losses = [
            F.cross_entropy(self.net.scores(own, index), y, reduction="sum")
            for (index, (_, y)), own in zip(memory.items(), self._memory_features(memory), strict=True)
        ]
        return torch.stack(losses).sum() / sum(len(y) for _, y in memory.values())

    def _memory_features(self, memory: dict[int, tuple[Tensor, Tensor]]) -> Sequence[Tensor]:
        """Features of each task's samples, from one pass through the backbone unless it goes by task."""
        if self.net.goes_by_task:
            return [self.net.features(x, index) for index, (x, _) in memory.items()]
        together = torch.cat([x for x, _ in memory.values()])
        return torch.split(self.net.features(together, next(iter(memory))), [len(y) for _, y in memory.values()])

    def state_dict(self) -> dict[str, Any]:
        return {str(index): {"x": rings.x, "seen": rings.seen} for index, rings in self.rings.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rings = {int(index): Rings(held["x"].clone(), held["seen"].clone()) for index, held in state.items()}

    def buffer_bytes(self) -> int:
        return sum(rings.x.nbytes for rings in self.rings.values())
