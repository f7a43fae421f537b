"""Accuracy on a split."""

import torch
from torch import Tensor, nn

from ...model.ranks import current_ranks
from ..methods import Method
from ..tasks import Split, Task


@torch.no_grad()
def accuracy(method: Method, net: nn.Module, task: Task, split: Split, batch: int) -> float:
    """Percent of the samples whose largest score, among the classes of the task, is that of the right class."""
    net.eval()
    ranks = current_ranks()
    mine = split.share(ranks).batches(batch)
    right: int | Tensor = 0
    for x, y in mine:
        with method.passes():
            scores = method.logits(x, task)
        right += (scores.argmax(1) == y).sum()
    return 100 * int(sum(ranks.gather(int(right)))) / len(split)
