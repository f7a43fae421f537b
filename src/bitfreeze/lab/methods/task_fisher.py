"""The diagonal Fisher of a task, for methods that measure how much each weight matters to it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from ...fisher import diagonal_fisher
from ...model.ranks import current_ranks
from ..nets.batch_statistics import fixed_statistics, norms_by_batch
from ..options import require
from ..tasks import Split, Task, TaskData
from .method import Method

Samples = Annotated[int | None, "training samples of a task for its Fisher; none takes all"]
Labels = Annotated[
    Literal["sample", "exact", "true"], "labels for the Fisher: drawn from the model, averaged over, or the data's own"
]
STATISTICS_SAMPLES = 500  # training samples whose statistics norms by batch have while the Fisher is measured


@dataclass
class FisherMethod(Method):
    """A method that measures the Fisher of each task."""

    samples: Samples = None
    labels: Labels = "exact"
    fisher_batch: Annotated[int, "samples at a time for the Fisher; the result does not depend on it"] = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        require("method", self, ["fisher_batch"], lambda n: n >= 1, "at least 1")
        require("method", self, ["samples"], lambda n: n is None or n >= 1, "at least 1, or none for all samples")

    def task_fisher(self, task: Task, data: TaskData) -> dict[str, Tensor]:
        """Diagonal Fisher of all parameters at their present values. It is 0 for the heads of other tasks."""
        batches = fisher_batches(data.train, self.samples, self.fisher_batch)
        with self.independent_samples(task, data):
            return diagonal_fisher(self.net, batches, lambda x: self.likelihood(x, task), labels=self.labels)

    def independent_samples(self, task: Task, data: TaskData) -> AbstractContextManager[None]:
        """Context in which no sample's gradient depends on the others: norms by batch have fixed statistics."""
        if not norms_by_batch(self.net):
            return nullcontext()
        x, _ = data.train.take(torch.randperm(len(data.train))[:STATISTICS_SAMPLES])
        return fixed_statistics(self.net, x, task.index)


def fisher_batches(split: Split, samples: int | None, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's share of ``samples`` samples, drawn from the whole split, which may be stored class by class."""
    drawn = split if samples is None else split.subset(torch.randperm(len(split))[:samples])
    return drawn.share(current_ranks()).batches(batch)
