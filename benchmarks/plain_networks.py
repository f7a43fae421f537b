"""The networks of the benchmark table, in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp() -> nn.Module:
    """784-1200-10, the paper's network for MNIST."""
    return nn.Sequential(nn.Linear(784, 1200), nn.ReLU(), nn.Linear(1200, 10))


def alexnet() -> nn.Module:
    """The AlexNet of HAT for 32x32 pictures: 64/128/256 channels, 2048/2048 units, 20 classes."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 4), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 2), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 2048), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(2048, 2048), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(2048, 20),
    )  # fmt: skip


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 for 84x84 pictures: a 3x3 stem of stride 2, four stages of two blocks, 5 classes."""
    stages: list[nn.Module] = []
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        stages += [_Block(inputs, outputs, stride), _Block(outputs, outputs, 1)]
        inputs = outputs
    stem = [nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 5))


class _Inverted(nn.Module):
    """A pointwise convolution to more channels, a depthwise one, a pointwise one back, with BatchNorm between."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        wide = [nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()] if expansion > 1 else []
        depthwise = nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False)
        narrow = nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.layers = nn.Sequential(*wide, depthwise, nn.BatchNorm2d(hidden), nn.ReLU6(), *narrow)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def mobile() -> nn.Module:
    """The widths and depths of EfficientNet-Lite0, 10 classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    inputs = 32
    for expansion, outputs, blocks, kernel, stride in (
        (1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2),
        (6, 112, 3, 5, 1), (6, 192, 4, 5, 2), (6, 320, 1, 3, 1),
    ):  # fmt: skip
        for block in range(blocks):
            layers.append(_Inverted(inputs, outputs, kernel, 1 if block else stride, expansion))
            inputs = outputs
    layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10))


class Transformer(nn.Module):
    """Four encoder layers of torch.nn (width 256, 4 heads) on 64 tokens of a vocabulary of 1,000; 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(1000, 256)
        self.position = nn.Parameter(0.02 * torch.randn(64, 256))
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.token(tokens) + self.position).mean(1))
