"""One run on several ranks. Each takes its part of every batch, and DistributedDataParallel averages the gradients."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...model.ranks import Ranks
from ..devices import current_device
from ..methods import Method
from ..tasks import Batch


def shared_objective(method: Method, net: nn.Module, ranks: Ranks) -> Callable[[list[Batch]], Tensor]:
    """The method's objective. With several ranks its gradients are those of the whole batch."""
    if ranks.count == 1:
        return method.objective
    # heads of other tasks get no gradient, so DDP must find the parameters in use in each step
    return DistributedDataParallel(_Objective(method, net), find_unused_parameters=True)


class _Objective(nn.Module):
    """Loss and penalty as one forward pass, so that DistributedDataParallel sees every parameter in use."""

    def __init__(self, method: Method, net: nn.Module) -> None:
        super().__init__()
        self.method, self.net = method, net

    def forward(self, batches: list[Batch]) -> Tensor:
        return self.method.objective(batches) * batches[0].weight


def share_of(rows: Tensor, ranks: Ranks) -> tuple[Tensor, float]:
    """This rank's part of a batch, and the weight of its mean in the mean over ranks. Equal parts have weight 1.

    A rank without a row takes one with weight 0, because all ranks must take part.
    """
    mine = rows[ranks.index :: ranks.count]
    weight = len(mine) * ranks.count / len(rows)
    return (mine, weight) if len(mine) else (rows[:1], weight)


def share_buffers(net: nn.Module, ranks: Ranks) -> None:
    """Give all ranks the buffers of rank 0, because each rank took statistics of its own part of a batch."""
    for buffer in net.buffers():
        ranks.broadcast_(buffer)


def share_random_state(ranks: Ranks) -> None:
    """Give all ranks the random states of rank 0, because they may have drawn for parts of different sizes."""
    if ranks.count == 1:
        return
    torch.set_rng_state(ranks.broadcast_(torch.get_rng_state()))
    device = current_device()
    if device.type != "cpu":
        module = torch.get_device_module(device)
        module.set_rng_state(ranks.broadcast_(module.get_rng_state(device)), device)
