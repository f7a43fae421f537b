"""Reference points: a network for each task, joint training on all data, and plain replay."""

import copy
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ...blip.running_statistics import with_running_statistics
from ..nets import MultiHead
from ..options import require
from ..tasks import Batch, Split, Task, TaskData
from .method import ANY_SCENARIO, Method, Record
from .registry import register_method
from .task_buffer import BufferSize, TaskBuffer, drawn


@register_method
@dataclass
class Single(Method):
    """Trains a separate network for each task: no forgetting, no transfer, T networks."""

    record = Record(
        "single",
        "reference: a separate network for each task",
        memory="O(T)",
        ceiling=True,
        data_parallel=True,
        trainers=("supervised", "language", "reinforcement"),
    )

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.net, self.learned = net, 0
        self.nets = nn.ModuleList([net, *(copy.deepcopy(net) for _ in tasks[1:])])
        return self.nets

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.net = self._of(task)

    def end_task(self, task: Task, data: TaskData) -> None:
        self.learned += 1

    def logits(self, x: Tensor, task: Task) -> Tensor:
        scores: Tensor = self._of(task)(x, task.index)
        return scores

    def _of(self, task: Task) -> MultiHead:
        net = self.nets[task.index]
        assert isinstance(net, MultiHead)
        return net

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned = state["learned"]

    def extra_bytes(self) -> int:
        """Memory of the networks of learned tasks but the first. The others could be made later."""
        return sum(p.nbytes for net in self.nets[1 : self.learned] for p in net.parameters())


@register_method
@dataclass
class Joint(Method):
    """Trains each step on a batch of every task so far, so that nothing need be forgotten."""

    record = Record(
        "joint",
        "reference: trains on the data of all tasks so far",
        memory="O(T)",
        replays=True,
        rereads=True,
        moves_old_heads=True,
        trainers=("supervised", "language"),
        scenarios=ANY_SCENARIO,
        ceiling=True,
    )

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.past: dict[Task, TaskData] = {}
        return super().build(net, tasks)

    def recall(self, task: Task, data: TaskData) -> None:
        self.past[task] = data

    def end_task(self, task: Task, data: TaskData) -> None:
        self.recall(task, data)

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        others = [drawn(data.train, len(batch.y), task) for task, data in self.past.items() if task != batch.task]
        return self.step([batch, *others], optimizers)

    def validation_splits(self, task: Task, data: TaskData) -> list[tuple[Task, Split]]:
        return [*((owner, past.valid) for owner, past in self.past.items() if owner != task), (task, data.valid)]

    def buffer_bytes(self) -> int:
        return sum(data.train.nbytes for data in self.past.values())


@register_method
@dataclass
class Replay(Method):
    """Experience replay: trains each step also on a batch of kept samples of earlier tasks, each with its own head."""

    record = Record(
        "er",
        "reference: plain replay from a small buffer",
        memory="O(1)",
        replays=True,
        moves_old_heads=True,
        trainers=("supervised", "language"),
        scenarios=ANY_SCENARIO,
    )

    buffer: BufferSize = 500
    share: Annotated[
        float | None, "share of a step's samples that are replayed in place of new ones; none adds one for each new"
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["share"], lambda s: s is None or 0 <= s < 1, "in [0, 1), or none")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.kept = TaskBuffer(self.buffer, tasks)
        return super().build(net, tasks)

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        if self.share is None or not self.kept.nbytes:
            return self.step([batch, *self.kept.draw(len(batch.y))], optimizers)
        count = len(batch.y)
        old = min(int((torch.rand(count) < self.share).sum()), count - 1)
        new = replace(batch, x=batch.x[old:], y=batch.y[old:])
        return self.step([new, *self.kept.draw(old)], optimizers)

    def _mean_loss(self, batches: list[Batch]) -> Tensor:
        """As of any method, but where norms keep running statistics, these see new and replayed samples together."""
        if len(batches) == 1 or not with_running_statistics(self.net.backbone.modules()):
            return super()._mean_loss(batches)
        together = self.net.features(torch.cat([batch.x for batch in batches]), batches[0].task.index)
        features = torch.split(together, [len(batch.y) for batch in batches])
        losses = [
            F.cross_entropy(self.net.scores(own, batch.task.index), batch.y, reduction="sum")
            for own, batch in zip(features, batches, strict=True)
        ]
        return torch.stack(losses).sum() / len(together)

    def end_task(self, task: Task, data: TaskData) -> None:
        self.kept.keep(task, data.train)

    def buffer_bytes(self) -> int:
        return self.kept.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept.load_state_dict(state["kept"])
