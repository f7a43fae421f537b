"""What each rank does in test_statistics_ranks.py."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from bitfreeze.fisher import estimate
from bitfreeze.fisher.factors import joined, write_joined_
from bitfreeze.fisher.statistics import MeanInputs, SecondMoments
from bitfreeze.fisher.turned_fisher import TurnedFisher
from support.per_sample import orthonormal
from support.ranks import be_a_rank


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.conv(x)).mean((2, 3)))


def make_net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def data() -> Tensor:
    return torch.randn(37, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def measure(net: Net, batches: Any) -> dict[str, Any]:
    """All kinds of statistics, as plain tensors."""
    torch.manual_seed(2)
    layer = net.conv
    u, v = orthonormal(1, 19, 3), orthonormal(1, 4, 2)
    square, thin = SecondMoments(layer), SecondMoments(layer, widest=2, rows=20)
    turned, mean = TurnedFisher(layer, u, v, others=True), MeanInputs(layer)
    torch.manual_seed(3)
    result = estimate(net, batches, statistics={layer: [square, thin, turned, mean]}, skip=["conv.weight"])
    return {
        "reason": result.statistics[layer],
        "samples": square.samples,
        "inputs": square.inputs.total,
        "outputs": square.outputs.total,
        "rows": thin.inputs.rows(),
        "output rows": thin.outputs.rows(),
        "mean": mean.mean(),
        **turned.totals,
    }


def refused(rank: int, count: int) -> str:
    """A layer that only the second rank calls in an unusual way is refused on both."""
    net = make_net()
    layer, x = net.head, data()[rank::count]

    def forward(x: Tensor) -> Tensor:
        h = torch.tanh(net.conv(x)).mean((2, 3))
        return layer(h) if rank == 0 else layer(h) + layer(h)

    return estimate(net, x.split(9), forward, statistics={layer: [MeanInputs(layer)]}).statistics[layer]


def all_of_it(rank: int, count: int) -> dict[str, Any]:
    mine = data()[rank::count]
    sharded = make_net()
    fully_shard(sharded.conv)
    fully_shard(sharded)
    found = {
        "plain": measure(make_net(), mine.split(3 + 4 * rank)),
        "one has all": measure(make_net(), [data()] if rank == 1 else []),
        "sharded": measure(sharded, mine.split(8)),
        "refused": refused(rank, count),
        "joined": joined(sharded.conv),
    }
    write_joined_(sharded.conv, 2 * found["joined"])
    return {**found, "written": sharded.conv.weight.full_tensor().detach()}


if __name__ == "__main__":
    be_a_rank({"all_of_it": all_of_it})
