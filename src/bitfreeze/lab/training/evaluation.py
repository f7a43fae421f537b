"""Accuracy on a split, with and without the task."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ...model.ranks import current_ranks
from ..methods import Method
from ..tasks import Split, Task


@dataclass(frozen=True)
class Accuracies:
    """Percent of the samples of a task whose class has the largest score.

    Attributes:
        told: among the classes that the network has for the task.
        untold: among the classes of all learned tasks; None where no single pass has scores for them.
    """

    told: float
    untold: float | None


def accuracy(method: Method, net: nn.Module, task: Task, split: Split, batch: int) -> float:
    """Percent of the samples whose largest score, among the classes of the task, is that of the right class."""
    return accuracies(method, net, task, split, batch, [task]).told


@torch.no_grad()
def accuracies(
    method: Method, net: nn.Module, task: Task, split: Split, batch: int, learned: Sequence[Task]
) -> Accuracies:
    """Accuracy with and without the task, from one pass over the samples of ``task``."""
    net.eval()
    ranks = current_ranks()
    counted = []
    for x, y in split.share(ranks).batches(batch):
        with method.passes():
            scores = method.logits_of_all(x, task, learned)
            own = method.logits(x, task) if scores is None else scores[:, columns_of(task, learned)]
        label = y - task.first_label  # within the task
        told = (own.argmax(1) == label).sum()
        untold = told if scores is None else (scores.argmax(1) == label + columns_of(task, learned).start).sum()
        counted.append(torch.stack([told, untold, told.new_tensor(scores is None)]))
    found = ranks.gather(torch.stack(counted).sum(0).tolist() if counted else [0, 0, 0])
    told, untold, alone = (sum(column) for column in zip(*found, strict=True))
    return Accuracies(100 * told / len(split), None if alone else 100 * untold / len(split))


def columns_of(task: Task, learned: Sequence[Task]) -> slice:
    """The scores of a task's own classes among those of all learned tasks, side by side."""
    start = task.first_label or sum(each.classes for each in learned if each.index < task.index)
    return slice(start, start + task.classes)
