"""EfficientNet-Lite0 with the weights of ImageNet: stages of inverted bottlenecks with ReLU6 and BatchNorm."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...blip.running_statistics import hold_in_eval
from ..data import load_efficientnet_lite0
from .multihead import MultiHead

# blocks, kernel, stride of the first block, width of its inner layer over its inputs, outputs
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip
STEM, FEATURES = 32, 1280
EPS = 1e-3
MOMENTUM = 0.1  # of statistics: with the published 0.01 they would lag far behind after a task of some 60 steps

# names in the published file: of a convolution and of its norm
NAMES = {
    "stem": ("_conv_stem", "_bn0"),
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
    "last": ("_conv_head", "_bn1"),
}

Statistics = Literal["first", "start", "free"]


class Convolution(nn.Module):
    """A convolution with BatchNorm. At a stride of 2 one row and column more are padded behind than before."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        before = (kernel - stride) // 2
        self.pad = (before, kernel - stride - before) * 2
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=EPS, momentum=MOMENTUM)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(F.pad(x, self.pad) if any(self.pad) else x))
        return y


class Block(nn.Module):
    """An inverted bottleneck: to more channels, over space, to fewer channels; added to its input where both fit."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, ratio: int) -> None:
        super().__init__()
        inner = ratio * inputs
        self.expand = Convolution(inputs, inner, 1) if ratio > 1 else None
        self.depthwise = Convolution(inner, inner, kernel, stride, groups=inner)
        self.project = Convolution(inner, outputs, 1)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.expand is None else F.relu6(self.expand(x))
        y: Tensor = self.project(F.relu6(self.depthwise(inner)))
        return x + y if self.adds else y


class EfficientNetLite0(nn.Module):
    """Maps pictures [n, 3, h, w], scaled to ``size``, to features [n, 1280]."""

    def __init__(self, size: int, statistics: Statistics) -> None:
        super().__init__()
        self.task, self.size, self.statistics = 0, size, statistics
        self.stem = Convolution(3, STEM, 3, 2)
        blocks, inputs = [], STEM
        for count, kernel, stride, ratio, outputs in STAGES:
            for k in range(count):
                blocks.append(Block(inputs, outputs, kernel, 1 if k else stride, ratio))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = Convolution(inputs, FEATURES, 1)
        if statistics == "start":
            self._hold_statistics()

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.task > 0 and self.statistics == "first":
            self._hold_statistics()
        x = F.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        x = x.contiguous(memory_format=torch.channels_last)
        return F.relu6(self.last(self.blocks(F.relu6(self.stem(x))))).mean((2, 3))

    def _hold_statistics(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                hold_in_eval(layer)

    def load_published(self, state: dict[str, Tensor]) -> None:
        """Take the weights of the published file; its last layer, of ImageNet's classes, is left out."""
        own = {}
        for name in self.state_dict():
            *place, layer, kind, value = name.split(".")
            block = [f"_{place[0]}", place[1]] if place else []
            own[name] = state[".".join([*block, NAMES[layer][kind == "norm"], value])]
        self.load_state_dict(own)


def efficientnet_lite0(
    shape: Sequence[int],
    classes: Sequence[int],
    size: Annotated[int, "rows and columns that pictures are scaled to"] = 64,
    statistics: Annotated[
        Statistics, "BatchNorm's statistics are held once the first task has ended, from the start, or never"
    ] = "first",
) -> MultiHead:
    """The network with its weights of ImageNet, and a head for each task."""
    if len(shape) != 3 or shape[0] != 3:
        raise ValueError(
            f"inputs of efficientnet_lite0 must be pictures in three colours, got shape {tuple(shape)}; "
            "use network.kind=mlp"
        )
    if size < 32:
        raise ValueError(f"network.size must be at least 32, got {size}")
    backbone = EfficientNetLite0(size, statistics)
    backbone.load_published(load_efficientnet_lite0())
    return MultiHead(backbone, FEATURES, classes)
