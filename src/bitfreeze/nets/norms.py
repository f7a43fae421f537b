"""BatchNorm for a sequence of tasks: no task touches the statistics that an earlier one left."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STATISTICS = ("first", "per_task")


class TaskNorm(nn.Module):
    """(x - mean) / std for each channel, nothing learned.

    Of the batch while statistics are taken, else those taken. ``"first"``: in the first task that the network is
    trained on, for all; ``"per_task"``: in each, for its own. ``layer.task`` says of which task the pictures are. Once
    a later task is trained, pictures of earlier ones (from a memory, say) change nothing.
    """

    means: Tensor
    variances: Tensor
    trained: Tensor

    def __init__(self, channels: int, tasks: int, statistics: str, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.per_task, self.momentum, self.eps = statistics == "per_task", momentum, eps
        self.task = 0
        rows = tasks if self.per_task else 1
        self.register_buffer("means", torch.zeros(rows, channels))
        self.register_buffer("variances", torch.ones(rows, channels))
        self.register_buffer("trained", torch.tensor([-1, -1]))  # the first task and the latest

    def forward(self, x: Tensor) -> Tensor:
        row = self.task if self.per_task else 0
        taken = self.training and self._are_taken()
        return F.batch_norm(x, self.means[row], self.variances[row], None, None, taken, self.momentum, self.eps)

    def _are_taken(self) -> bool:
        first, latest = self.trained.tolist()
        if self.task > latest:
            latest = self.task
            first = latest if first < 0 else first
            self.trained.copy_(torch.tensor([first, latest]))
        return self.task == latest and (self.per_task or self.task == first)
