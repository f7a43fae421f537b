"""A buffer of samples that gives each task so far an equal share."""

from typing import Annotated, Any

import torch

from ..tasks import Batch, Split, Task

BufferSize = Annotated[int, "samples kept, over all tasks"]


class TaskBuffer:
    """Keeps ``size`` training samples in all. Earlier tasks give up some of theirs to each new one."""

    def __init__(self, size: int, tasks: tuple[Task, ...]) -> None:
        if size < len(tasks):
            raise ValueError(f"method.buffer must be at least {len(tasks)}, a sample a task, got {size}")
        self.size, self.tasks = size, tasks
        self.kept: dict[int, Split] = {}

    def keep(self, task: Task, split: Split) -> None:
        """Take in samples of a task that was learned."""
        self.kept[task.index] = split
        share = self.size // len(self.kept)
        self.kept = {k: s.subset(torch.randperm(len(s))[:share]) for k, s in self.kept.items()}

    def draw(self, count: int) -> list[Batch]:
        """``count`` samples in all, in a batch for each task; none while the buffer is empty."""
        if not self.kept:
            return []
        owners = torch.randint(len(self.kept), (count,)).bincount(minlength=len(self.kept)).tolist()
        kept = zip(owners, self.kept.items(), strict=True)
        return [drawn(split, n, self.tasks[index]) for n, (index, split) in kept if n]

    @property
    def nbytes(self) -> int:
        """Memory of the samples, in bytes."""
        return sum(split.nbytes for split in self.kept.values())

    def state_dict(self) -> dict[str, Any]:
        return {str(k): split.state_dict() for k, split in self.kept.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = {int(k): Split.loaded(saved) for k, saved in state.items()}


def drawn(split: Split, count: int, task: Task) -> Batch:
    """``count`` samples, drawn with replacement."""
    return Batch(*split.take(torch.randint(len(split), (count,))), task)
