"""ResNet-18 of the released mini-ImageNet code: a 3x3 stem of stride 2, no max-pooling, norms without parameters."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .convolutions import ChannelsLast
from .multihead import MultiHead
from .norms import Statistics, TaskNorm


class EverySecond(nn.Module):
    """Keeps every second row and column. A pointwise convolution then needs no stride of 2.

    torch 2.13 on a CPU writes outside of its memory in the weight gradient of a strided pointwise convolution with
    fewer than eight channels in channels-last layout.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, ::2, ::2]


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, tasks: int, statistics: Statistics) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(inputs, outputs, stride), TaskNorm(outputs, tasks, statistics)
        self.conv2, self.norm2 = _convolution(outputs, outputs), TaskNorm(outputs, tasks, statistics)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
            norm = TaskNorm(outputs, tasks, statistics)
            self.shortcut = nn.Sequential(EverySecond() if stride == 2 else nn.Identity(), pointwise, norm)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """Four stages of two blocks. ``task`` is passed on to the norms."""

    def __init__(self, channels: int, widths: Sequence[int], tasks: int, statistics: Statistics) -> None:
        super().__init__()
        self.task = 0
        self.channels_last = ChannelsLast()
        self.conv, self.norm = _convolution(channels, widths[0], 2), TaskNorm(widths[0], tasks, statistics)
        blocks = []
        for stage, (inputs, outputs) in enumerate(pairwise([widths[0], *widths])):
            blocks += [Block(inputs, outputs, 2 if stage else 1, tasks, statistics)]
            blocks += [Block(outputs, outputs, 1, tasks, statistics)]
        self.blocks = nn.Sequential(*blocks)
        self.norms = [module for module in self.modules() if isinstance(module, TaskNorm)]

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            norm.task = self.task
        x = self.blocks(F.relu(self.norm(self.conv(self.channels_last(x))), inplace=True))
        # 84x84 pictures come out as 6x6; the last two rows and columns are left out, as in the released code
        return F.avg_pool2d(x, min(4, *x.shape[2:])).flatten(1)


def resnet18(
    shape: Sequence[int],
    classes: Sequence[int],
    width: Annotated[float, "multiple of the 64, 128, 256 and 512 channels of the paper"] = 1.0,
    statistics: Annotated[Statistics, "norms have the statistics of the first task, or each task's own"] = "first",
) -> MultiHead:
    """Four stages of two blocks, and a head for each task."""
    if len(shape) != 3 or min(shape[1:]) < 2:
        raise ValueError(f"inputs of resnet18 must be pictures, got shape {tuple(shape)}; use network.kind=mlp")
    widths = [int(channels * width) for channels in (64, 128, 256, 512)]
    if widths[0] < 1:
        raise ValueError(f"network.width must be at least 1/64, got {width}; write network.width=1 for the paper's")
    backbone = ResNet(shape[0], widths, len(classes), statistics)
    with torch.no_grad():
        features = backbone.eval()(torch.zeros(1, *shape)).shape[1]
    net = MultiHead(backbone.train(), features, classes)
    net.goes_by_task = statistics == "per_task"
    return net


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
