"""BatchNorm for a sequence of tasks: no task changes the statistics of an earlier one."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Statistics = Literal["first", "per_task"]


class TaskNorm(nn.Module):
    """Returns (x - mean) / std of each channel. Nothing is learned.

    ``layer.task`` is the task of the pictures. With ``"first"`` the statistics are taken in the first task that the
    network is trained on, and serve all tasks. With ``"per_task"`` each task takes its own. While they are taken, x is
    normalised by those of the batch. Once a later task is trained, pictures of earlier tasks, such as those of a
    memory, change nothing.
    """

    means: Tensor
    variances: Tensor
    trained: Tensor

    def __init__(self, channels: int, tasks: int, statistics: Statistics) -> None:
        super().__init__()
        self.per_task = statistics == "per_task"
        self.task = 0
        rows = tasks if self.per_task else 1
        self.register_buffer("means", torch.zeros(rows, channels))
        self.register_buffer("variances", torch.ones(rows, channels))
        self.register_buffer("trained", torch.tensor([-1, -1]))  # first and latest task trained
        self._read: tuple[Tensor, int, tuple[int, int]] | None = None  # the buffer, its version and what it held

    def forward(self, x: Tensor) -> Tensor:
        row = self.task if self.per_task else 0
        taken = self.training and self._are_taken()
        return F.batch_norm(x, self.means[row], self.variances[row], None, None, taken, momentum=0.1, eps=1e-5)

    def _are_taken(self) -> bool:
        first, latest = self._first_and_latest()
        if self.task > latest:
            latest = self.task
            first = latest if first < 0 else first
            self.trained.copy_(torch.tensor([first, latest]))
            self._read = self.trained, self.trained._version, (first, latest)
        return self.task == latest and (self.per_task or self.task == first)

    def _first_and_latest(self) -> tuple[int, int]:
        """What the buffer holds. It is read only when it has changed, because that waits for the device."""
        if self._read is None or self._read[0] is not self.trained or self._read[1] != self.trained._version:
            first, latest = self.trained.tolist()
            self._read = self.trained, self.trained._version, (first, latest)
        return self._read[2]
