"""One run on several ranks: each takes its part of every batch, DistributedDataParallel averages the gradients."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..distributed import Ranks
from ..methods import Batch, Method


def shared_objective(method: Method, net: nn.Module, ranks: Ranks) -> Callable[[list[Batch]], Tensor]:
    """The method's objective; with several ranks its gradients are those of the whole batch."""
    if ranks.count == 1:
        return method.objective
    # heads of other tasks get no gradient, so which parameters take part has to be found in each step
    return DistributedDataParallel(_Objective(method, net), find_unused_parameters=True)


class _Objective(nn.Module):
    """Loss and penalty as one forward pass, so that DistributedDataParallel sees all that gets a gradient."""

    def __init__(self, method: Method, net: nn.Module) -> None:
        super().__init__()
        self.method, self.net = method, net

    def forward(self, batches: list[Batch]) -> Tensor:
        return self.method.objective(batches) * batches[0].weight


def share_of(rows: Tensor, ranks: Ranks) -> tuple[Tensor, float]:
    """This rank's part of a batch, and what its mean counts in the mean over ranks: 1 where all parts are as large.

    A rank that is left without a row takes one that counts nothing, for all ranks must take part.
    """
    mine = rows[ranks.index :: ranks.count]
    weight = len(mine) * ranks.count / len(rows)
    return (mine, weight) if len(mine) else (rows[:1], weight)


def share_buffers(net: nn.Module, ranks: Ranks) -> None:
    """All ranks go on with rank 0's: each has taken statistics of its own part of the last batch."""
    for buffer in net.buffers():
        ranks.broadcast_(buffer)


def share_random_state(ranks: Ranks) -> None:
    """All ranks go on with rank 0's: they may have drawn for parts of different sizes."""
    if ranks.count > 1:
        torch.set_rng_state(ranks.broadcast_(torch.get_rng_state()))
