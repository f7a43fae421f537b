"""Loss on a split of texts, in nats a token."""

import torch
import torch.nn.functional as F
from torch import nn

from ...model.ranks import current_ranks
from ..methods import Method
from ..tasks import Split, Task


@torch.no_grad()
def nats(method: Method, net: nn.Module, task: Task, split: Split, batch: int) -> float:
    """Mean over all labels of a split, which may be several a sample, of -log p(label)."""
    net.eval()
    ranks, total = current_ranks(), 0.0
    for x, y in split.share(ranks).batches(batch):
        with method.passes():
            scores = method.logits(x, task)
        total += F.cross_entropy(scores.flatten(0, -2), y.flatten(), reduction="sum").item()
    return sum(ranks.gather(total)) / split.y.numel()
