"""BLIP on a pretrained network with BatchNorm: a small convolutional network learns the ten digits mirrored (it stands
in for what one downloads), and then digits upright, on their side, and upside down, one after another.

BatchNorm's running statistics are no parameters, and no frozen bit protects them: freeze_statistics=True holds them
after the first task. From then on batches are not normalised by themselves, so the learning rate must be modest.
Watched are all parameters of the backbone, BatchNorm's scales and shifts too.

The learning rate was chosen by looking at the outcome, so take the figures as an illustration. The tolerance is BLIP's
default.

    python examples/pretrained_batchnorm.py
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP
from bitfreeze.lab.data import load_digits

TURNS, EPOCHS, BATCH, RATE = (0, 1, 2), 8, 32, 0.01


class Network(nn.Module):
    """Convolutions with BatchNorm, and a head for pretraining and for each task."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.backbone = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten())
        self.heads = nn.ModuleList(nn.Linear(128, 10) for _ in range(1 + len(TURNS)))

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](self.backbone(x))


def train(model: Network, head: int, x: Tensor, y: Tensor, epochs: int, lr: float) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows], head), y[rows]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: Network, head: int, x: Tensor, y: Tensor) -> float:
    model.eval()
    return (model(x, head).argmax(1) == y).float().mean().item() * 100


def pretrained(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    images, labels = load_digits()
    model = Network()
    train(model, 0, images[:, None].flip(2).float() / 16, labels, epochs=3, lr=0.1)
    return model


def run(start: Network, protect: bool, seed: int = 0) -> list[list[float]]:
    """The accuracy on tasks 1..t after each task t."""
    torch.manual_seed(seed)
    model = deepcopy(start)
    images, labels = load_digits()
    test = torch.arange(len(labels)) % 4 == 0
    pictures = [torch.rot90(images[:, None], turns, (2, 3)).float() / 16 for turns in TURNS]
    blip = BLIP(model, watch=model.backbone, freeze_statistics=True)
    attachment = blip.attach() if protect else None
    matrix = []
    for task, x in enumerate(pictures):
        train(model, task + 1, x[~test], labels[~test], EPOCHS, RATE)
        if protect:
            blip.consolidate(x[~test].split(64), forward=lambda batch, head=task + 1: model(batch, head))
        matrix.append([accuracy(model, u + 1, pictures[u][test], labels[test]) for u in range(task + 1)])
    if attachment:
        attachment.remove()
    return matrix


def summary(matrix: list[list[float]]) -> tuple[float, float]:
    """Mean accuracy at the end, and its mean change since each task was learned."""
    last = matrix[-1]
    return sum(last) / len(last), sum(last[t] - matrix[t][t] for t in range(len(last) - 1)) / (len(last) - 1)


def main() -> None:
    torch.set_num_threads(1)
    start = pretrained()
    print("Digits upright, on their side, upside down, after pretraining: test accuracy in percent, seed 0")
    for protect in (False, True):
        matrix = run(start, protect)
        mean, change = summary(matrix)
        shown = "  ".join(f"{value:5.1f}" for value in matrix[-1])
        print(f"{'with' if protect else 'without':>8} BLIP: {shown}   mean {mean:.1f}, since learned {change:+.1f}")


if __name__ == "__main__":
    main()
