"""What a training step of the picture networks costs, against the same layers of torch.nn in the paper's order."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from bitfreeze.lab.nets import build_network
from bitfreeze.lab.nets.convolutions import ChannelsLast
from bitfreeze.lab.nets.dropout import Dropout, PoolReLU
from bitfreeze.lab.nets.norms import TaskNorm
from bitfreeze.lab.nets.resnet import EverySecond
from measure import ratio

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
}


def our_resnet18(size: int = 84, **options: object) -> nn.Module:
    torch.manual_seed(0)
    net = build_network({"kind": "resnet18", **options}, (3, size, size), [5])
    return nn.Sequential(net.backbone, net.heads[0])


def plain_resnet18(ours: nn.Module) -> nn.Module:
    """torch's BatchNorm, strides in the pointwise convolutions, and channels where they usually are in memory."""
    plain = copy.deepcopy(ours)
    for path, module in list(plain.named_modules()):
        if isinstance(module, TaskNorm):
            plain.set_submodule(path, nn.BatchNorm2d(module.means.shape[1], affine=False))
        elif isinstance(module, ChannelsLast | EverySecond):
            plain.set_submodule(path, nn.Identity())
    for block in plain[0].blocks:
        for layer in block.shortcut:
            if isinstance(layer, nn.Conv2d):
                layer.stride = block.conv1.stride
    return plain


def measure_alexnet(rounds: int, steps: int = 3, batch: int = 32) -> float:
    """Steps of SGD with our layers by steps with torch's."""
    ours = our_alexnet()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(20, (batch,))
    return ratio(steps_of(ours, x, y, steps), steps_of(plain_alexnet(ours), x, y, steps), rounds)[0]


def measure_resnet18(rounds: int, batch: int = 32) -> float:
    ours = our_resnet18()
    x, y = torch.randn(batch, 3, 84, 84), torch.randint(5, (batch,))
    return ratio(steps_of(ours, x, y, 1), steps_of(plain_resnet18(ours), x, y, 1), rounds)[0]


def steps_of(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> Callable[[], None]:
    optimizer = SGD(net.parameters(), lr=0.01)

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

    return train
