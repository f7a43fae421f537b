"""BatchNorm statistics in a fresh network: `python research/fresh_batchnorm.py --method blip --statistics first`.

Three convolutions with BatchNorm learn the five pairs of CIFAR-10's classes in turn, from 2,000 pictures each, with SGD
and a linear head a task. Each run appends a row to a CSV. `--statistics` says whether running statistics are free, or
held once the first task has ended.
"""

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

from bitfreeze.lab.data import load_cifar10
from bitfreeze.lab.metrics import average_accuracy, backward_transfer, learning_accuracy
from pretrained_runs import Keeper, add_options, append_row, make_keeper, settings_text

TRAIN, VALID, EPOCHS, BATCH = 2000, 1000, 8, 32
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
Pictures = tuple[Tensor, Tensor]


class Model(nn.Module):
    """A backbone that all tasks share, and a linear head a task."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        self.backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.heads = nn.ModuleList(nn.Linear(512, 2) for _ in PAIRS)

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](self.backbone(x))


def load_tasks(split: str) -> list[tuple[Pictures, Pictures]]:
    """For each pair of classes what is trained on, and what is held out."""
    images, tasks = load_cifar10(), []
    for pair in PAIRS:
        parts = []
        for pictures, labels in ((images.train_x, images.train_y), (images.test_x, images.test_y)):
            rows = torch.isin(labels, torch.tensor(pair)).nonzero().flatten()
            x = pictures[rows].reshape(-1, 3, 32, 32).float() / 127.5 - 1
            parts.append((x, (labels[rows] == pair[1]).long()))
        (x, y), test = parts
        held_out = (x[-VALID:], y[-VALID:]) if split == "valid" else test
        tasks.append(((x[:-VALID], y[:-VALID]), held_out))
    return tasks


def set_training(model: Model, held: bool) -> None:
    model.train()
    for layer in model.modules():
        if held and isinstance(layer, _BatchNorm):
            layer.eval()


@torch.no_grad()
def accuracy(model: Model, task: int, pictures: Pictures) -> float:
    """Percent of the pictures that are classified correctly."""
    model.eval()
    hits = [model(x, task).argmax(1) == y for x, y in zip(*(part.split(500) for part in pictures), strict=True)]
    return 100 * torch.cat(hits).float().mean().item()


def train(model: Model, task: int, x: Tensor, y: Tensor, keeper: Keeper, lr: float, draw: torch.Generator) -> None:
    optimizer = SGD(model.parameters(), lr=lr)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(y), generator=draw).split(BATCH):
            optimizer.zero_grad()
            loss, penalty = F.cross_entropy(model(x[rows], task), y[rows]), keeper.penalty()
            (loss if penalty is None else loss + penalty).backward()
            optimizer.step()


def run(tasks: list[tuple[Pictures, Pictures]], options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Learn all tasks, one after the other, and return the row."""
    torch.manual_seed(seed)
    draw, model, matrix = torch.Generator().manual_seed(seed), Model(), []
    watch = [f"backbone.{name}" for name, _ in model.backbone.named_parameters()]
    holds = options.statistics == "first"
    keeper = make_keeper(options, model, watch, **({"freeze_statistics": True} if holds else {}))
    keeper.attach()
    for task, (data, _) in enumerate(tasks):
        rows = torch.randperm(len(data[1]), generator=draw)[:TRAIN]
        x, y = data[0][rows], data[1][rows]
        set_training(model, holds and task > 0)
        train(model, task, x, y, keeper, options.lr, draw)
        matrix.append([accuracy(model, u, tasks[u][1]) for u in range(task + 1)])
        if task + 1 < len(tasks):
            batches = list(zip(x.split(500), y.split(500), strict=True))
            keeper.end_task(batches, lambda x, task=task: model(x, task))
    return {
        "acc": average_accuracy(matrix), "bwt": backward_transfer(matrix), "learned": learning_accuracy(matrix),
        "accuracies": matrix,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, ["ft", "ewc", "blip"], lr=0.05)
    parser.add_argument("--statistics", choices=["free", "first"], default="first", help="free, or held after task 1")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = load_tasks(options.split)
    for seed in map(int, options.seeds.split(",")):
        described = {
            "method": options.method, "settings": settings_text(options), "statistics": options.statistics,
            "optimizer": "sgd", "lr": options.lr, "split": options.split, "seed": seed,
        }  # fmt: skip
        append_row(options.out, {**described, **run(tasks, options, seed)})


if __name__ == "__main__":
    main()
