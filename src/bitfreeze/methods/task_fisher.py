"""The diagonal Fisher of a task's data, for the methods that measure how much each weight matters to it."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..distributed import world
from ..fisher import diagonal_fisher
from ..fisher.labels import require_kind
from ..streams import Split, Task, TaskData
from .method import Method


def task_fisher(
    method: Method, task: Task, data: TaskData, *, samples: int | None, labels: str, batch: int
) -> dict[str, Tensor]:
    """The diagonal Fisher of the whole network, heads too, at its weights as they are; 0 for the other tasks' heads."""
    batches = fisher_batches(data.train, samples, batch)
    return diagonal_fisher(method.net, batches, lambda x: method.likelihood(x, task), labels=labels)


def fisher_batches(split: Split, samples: int | None, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's share of so many samples, drawn from all: the stored order may be that of the classes."""
    drawn = split if samples is None else split.subset(torch.randperm(len(split))[:samples])
    return drawn.share(world()).batches(batch)


def require_fisher_options(samples: int | None, labels: str, batch: int) -> None:
    require_kind(labels)
    if batch < 1:
        raise ValueError(f"fisher_batch={batch} will not do: give at least 1")
    if samples is not None and samples < 1:
        raise ValueError(f"samples={samples} leaves nothing for the Fisher: give at least 1, or none for all there are")
