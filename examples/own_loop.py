"""Five two-class tasks of handwritten digits, learned one after another: plain fine-tuning beside BLIP.

    python examples/own_loop.py

Prints the accuracy on every task after each task: reading down a column shows what is forgotten.

Sixty epochs fit the training digits to the last one. Of such a sure network a few hundred drawn labels tell little, so
the expectation over both labels is taken: labels="exact".
"""

import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP
from bitfreeze.lab.data import load_digits

PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
EPOCHS, BATCH, RATE, SEEDS = 60, 32, 0.2, (0, 1, 2)


class Network(nn.Module):
    """A shared backbone and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, 2) for _ in PAIRS)

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](self.backbone(x))


def make_tasks() -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Training and test images and labels of each pair of digits; every fourth image is for testing."""
    images, labels = load_digits()
    x = images.flatten(1).float() / 16
    test = torch.arange(len(x)) % 4 == 0
    tasks = []
    for pair in PAIRS:
        here = (labels == pair[0]) | (labels == pair[1])
        y = (labels == pair[1]).long()
        tasks.append((x[here & ~test], y[here & ~test], x[here & test], y[here & test]))
    return tasks


def train(model: Network, task: int, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows], task), y[rows]).backward()
            optimizer.step()


def accuracy(model: Network, task: int, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (model(x, task).argmax(1) == y).float().mean().item() * 100


def run(protect: bool, seed: int) -> list[list[float]]:
    """The accuracy on tasks 1..t after each task t."""
    torch.manual_seed(seed)
    model = Network()
    blip = BLIP(model, watch=model.backbone)
    attachment = blip.attach() if protect else None
    matrix, tasks = [], make_tasks()
    for t, (x, y, _, _) in enumerate(tasks):
        train(model, t, x, y)
        if protect:
            blip.consolidate([x], forward=lambda batch, t=t: model(batch, t), labels="exact")
        matrix.append([accuracy(model, u, *tasks[u][2:]) for u in range(t + 1)])
    if attachment:
        attachment.remove()
    return matrix


def summary(matrix: list[list[float]]) -> tuple[float, float]:
    """Mean accuracy at the end, and its mean change since each task was learned."""
    last = matrix[-1]
    return sum(last) / len(last), sum(last[t] - matrix[t][t] for t in range(len(last) - 1)) / (len(last) - 1)


def show(title: str, matrices: list[list[list[float]]]) -> None:
    print(f"\n{title}\n  {'after':<8}" + "".join(f"{a} or {b}".rjust(9) for a, b in PAIRS))
    for t, row in enumerate(matrices[0]):
        print(f"  task {t + 1:<3}" + "".join(f"{value:9.1f}" for value in row))
    print("  at the end, and change since learned:", end="")
    for seed, matrix in zip(SEEDS, matrices, strict=True):
        mean, change = summary(matrix)
        print(f"  seed {seed} {mean:.1f} ({change:+.1f})", end="")
    print()


def main() -> None:
    torch.set_num_threads(1)  # for a network this small more threads only wait for each other
    started = time.perf_counter()
    print("Test accuracy (%) on pairs of handwritten digits, learned one pair after another (table: seed 0).")
    show("Fine-tuning", [run(protect=False, seed=seed) for seed in SEEDS])
    show("BLIP", [run(protect=True, seed=seed) for seed in SEEDS])
    print(f"\n{EPOCHS} epochs a task, {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
