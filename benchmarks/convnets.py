"""What a training step of the picture networks costs, against the same layers of torch.nn in the paper's order."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import ratio
from torch import Tensor, nn
from torch.optim import SGD

from bitfreeze.nets import build_network
from bitfreeze.nets.convolutions import ChannelsLast
from bitfreeze.nets.dropout import Dropout, PoolReLU
from bitfreeze.nets.mlp import Flatten

CIFAR = {"channels": [64, 128, 256], "dropout": [0.2, 0.5]}


def our_alexnet(classes: int = 20, **options: object) -> nn.Module:
    """One head, so that both sides are plain functions of the pictures."""
    torch.manual_seed(0)
    net = build_network({"kind": "alexnet", **CIFAR, **options}, (3, 32, 32), [classes])
    return nn.Sequential(net.backbone, net.heads[0])


def plain_alexnet(ours: nn.Module) -> nn.Sequential:
    """Convolution, ReLU, dropout, pooling: each layer of ours in torch's own, with the same weights."""
    layers: list[nn.Module] = []
    for layer in (*ours[0], ours[1]):
        layers += _PLAIN.get(type(layer), lambda layer: [layer])(layer)
    return copy.deepcopy(nn.Sequential(*layers))


_PLAIN = {
    ChannelsLast: lambda layer: [],
    PoolReLU: lambda layer: [nn.ReLU(), nn.Dropout(layer.dropout), nn.MaxPool2d(2)],
    Dropout: lambda layer: [nn.Dropout(layer.p)],
    Flatten: lambda layer: [nn.Flatten()],
}


def measure_convnet(rounds: int, steps: int = 3, batch: int = 32) -> float:
    """Steps of SGD with our layers by steps with torch's."""
    ours = our_alexnet()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(20, (batch,))
    return ratio(_steps(ours, x, y, steps), _steps(plain_alexnet(ours), x, y, steps), rounds)[0]


def _steps(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> Callable[[], None]:
    optimizer = SGD(net.parameters(), lr=0.01)

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

    return train
