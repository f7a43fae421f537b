"""ACL-R: ACL that replays an image of each earlier class."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn

from ..nets import MultiHead
from ..options import require
from ..tasks import Batch, Split, Task, TaskData
from .acl import Adversarial
from .method import Record
from .registry import register_method


@register_method
@dataclass
class AdversarialReplay(Adversarial):
    """Trains ACL also on a few images of each earlier class, through the modules of their own task."""

    record = Record(
        "acl_r",
        "ACL with replay of an image per class",
        paper="Ebrahimi et al., ECCV 2020",
        memory="O(T)",
        optimizer="SGD with momentum",
        own_networks=True,
        replays=True,
    )

    replay: Annotated[int, "images kept of each class"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["replay"], lambda n: n >= 0, "at least 0", "0 turns replay off")

    def build(self, net: MultiHead, tasks: tuple[Task, ...]) -> nn.Module:
        self.tasks = tasks
        self.kept: dict[int, Split] = {}
        return super().build(net, tasks)

    def begin_task(self, task: Task, data: TaskData) -> None:
        self.train_size = len(data.train)
        super().begin_task(task, data)

    def replayed(self, batch: Batch, progress: float) -> list[Batch]:
        """The kept images that go with this batch. Each comes once an epoch, in random order."""
        places = [(owner, row) for owner, split in self.kept.items() for row in range(len(split))]
        if progress == 0:
            self.order = torch.randperm(len(places)).tolist() if places else []
        seen = round(progress * self.train_size)
        first, last = (count * len(places) // self.train_size for count in (seen, seen + len(batch.y)))
        rows: dict[int, list[int]] = {}
        for place in self.order[first:last]:
            owner, row = places[place]
            rows.setdefault(owner, []).append(row)
        return [Batch(*self.kept[k].take(torch.tensor(rows[k])), self.tasks[k]) for k in sorted(rows)]

    def end_task(self, task: Task, data: TaskData) -> None:
        super().end_task(task, data)
        if self.replay:
            self.kept[task.index] = per_class(data.train, self.replay)

    def buffer_bytes(self) -> int:
        return sum(split.nbytes for split in self.kept.values())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kept": {str(k): split.state_dict() for k, split in self.kept.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.kept = {int(k): Split.loaded(saved) for k, saved in state["kept"].items()}


def per_class(split: Split, count: int) -> Split:
    """``count`` random samples of each class."""
    rows = [(split.y == label).nonzero().flatten() for label in torch.unique(split.y)]
    return split.subset(torch.cat([mine[torch.randperm(len(mine))[:count]] for mine in rows]))
