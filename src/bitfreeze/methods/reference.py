"""Reference points: a network for each task, all data at once, and plain replay."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..nets import MultiHead
from ..options import option
from ..streams import Split, Task, TaskData
from .method import Batch, Method, Record
from .registry import register_method


@register_method
@dataclass
class Single(Method):
    """A network of its own for each task: no forgetting, no transfer, and as many networks as tasks."""

    record = Record(
        "single",
        "reference: a separate network for each task",
        memory="O(T)",
        data_parallel=True,
        trainers=("supervised", "reinforcement"),
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
        """Of tasks that it has learned: those to come could be made later."""
        return sum(p.numel() * p.element_size() for net in self.nets[1 : self.learned] for p in net.parameters())


@register_method
@dataclass
class Joint(Method):
    """Each step sees a batch of every task so far: what could be learned if nothing had to be given up."""

    record = Record(
        "joint",
        "reference: trains on the data of all tasks so far",
        memory="O(T)",
        replays=True,
        rereads=True,
        moves_old_heads=True,
    )

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.past: dict[Task, TaskData] = {}
        return super().build(net, tasks)

    def recall(self, task: Task, data: TaskData) -> None:
        self.past[task] = data

    def end_task(self, task: Task, data: TaskData) -> None:
        self.recall(task, data)

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        others = [self._draw(task, data.train, len(batch.y)) for task, data in self.past.items() if task != batch.task]
        return self.step([batch, *others], optimizers)

    def _draw(self, task: Task, split: Split, count: int) -> Batch:
        return Batch(*split.take(torch.randint(len(split), (count,))), task)

    def validation_splits(self, task: Task, data: TaskData) -> list[tuple[Task, Split]]:
        return [*((owner, past.valid) for owner, past in self.past.items() if owner != task), (task, data.valid)]

    def buffer_bytes(self) -> int:
        return sum(data.train.nbytes for data in self.past.values())


@register_method
@dataclass
class Replay(Method):
    """Experience replay: each step also sees a batch from a buffer of earlier samples, each with its own head."""

    record = Record(
        "er", "reference: plain replay from a small buffer", memory="O(1)", replays=True, moves_old_heads=True
    )

    buffer: int = option(500, "samples that are kept, of all tasks together")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        if self.buffer < len(tasks):
            raise ValueError(
                f"buffer={self.buffer} will not do: give the number of samples to keep, at least one for each of the "
                f"{len(tasks)} tasks"
            )
        self.tasks = tasks
        self.kept: dict[int, Split] = {}
        return super().build(net, tasks)

    def train_batch(self, batch: Batch, progress: float, optimizers: list[Optimizer]) -> Tensor:
        return self.step([batch, *self._draw(len(batch.y))], optimizers)

    def _draw(self, count: int) -> list[Batch]:
        """``count`` samples of the buffer, as a batch for each task that they belong to."""
        if not self.kept:
            return []
        owners = torch.randint(len(self.kept), (count,)).bincount(minlength=len(self.kept)).tolist()
        return [
            Batch(*split.take(torch.randint(len(split), (n,))), self.tasks[index])
            for n, (index, split) in zip(owners, self.kept.items(), strict=True)
            if n
        ]

    def end_task(self, task: Task, data: TaskData) -> None:
        """Equal shares for all tasks so far: earlier ones give up some of theirs."""
        self.kept[task.index] = data.train
        share = self.buffer // len(self.kept)
        self.kept = {k: s.subset(torch.randperm(len(s))[:share]) for k, s in self.kept.items()}

    def buffer_bytes(self) -> int:
        return sum(split.nbytes for split in self.kept.values())

    def state_dict(self) -> dict[str, Any]:
        return {"kept": {str(k): split.state_dict() for k, split in self.kept.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = {int(k): Split.loaded(saved) for k, saved in state["kept"].items()}
