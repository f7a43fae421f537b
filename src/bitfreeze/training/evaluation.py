"""Accuracy on a split."""

import torch
from torch import nn

from ..methods import Method
from ..streams import Split, Task


@torch.no_grad()
def accuracy(method: Method, net: nn.Module, task: Task, split: Split, batch: int) -> float:
    """Percent of the samples whose largest score, among the task's own classes, is the right one."""
    net.eval()
    right = sum(int((method.logits(x, task).argmax(1) == y).sum()) for x, y in split.batches(batch))
    return 100 * right / len(split)
