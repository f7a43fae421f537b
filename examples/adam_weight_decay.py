"""BLIP with AdamW. Adam moves every parameter by about the same step and weight decay shrinks all of them, so that
fine-tuning forgets quickly; BLIP brings the weights back into their intervals after whatever the optimizer did.

The network becomes sure of nearly all its digits, so that drawn labels tell little: the expectation over both labels is
taken, labels="exact". All else is BLIP's default.

    python examples/adam_weight_decay.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP
from bitfreeze.lab.data import load_digits

TASKS, EPOCHS, BATCH, SEEDS = 5, 15, 32, (0, 1)


class Network(nn.Module):
    """A shared backbone and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, 2) for _ in range(TASKS))

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](self.backbone(x))


def make_tasks() -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Digits 0 or 1, 2 or 3, ...: training images and labels, test images and labels."""
    images, labels = load_digits()
    x, test = images.flatten(1).float() / 16, torch.arange(len(labels)) % 4 == 0
    return [
        (x[mine & ~test], labels[mine & ~test] % 2, x[mine & test], labels[mine & test] % 2)
        for mine in (labels // 2 == task for task in range(TASKS))
    ]


def run(protect: bool, seed: int = 0) -> list[list[float]]:
    """The accuracy on tasks 1..t after each task t."""
    torch.manual_seed(seed)
    model = Network()
    blip = BLIP(model, watch=model.backbone)
    attachment = blip.attach() if protect else None  # AdamW is made anew for each task: no matter
    tasks, matrix = make_tasks(), []
    for task, (x, y, _, _) in enumerate(tasks):
        # only what this task trains: a head whose gradients are 0 rather than None would be shrunk by weight decay
        trained = [*model.backbone.parameters(), *model.heads[task].parameters()]
        optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.05)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows], task), y[rows]).backward()
                optimizer.step()
        if protect:
            blip.consolidate([x], forward=lambda batch, task=task: model(batch, task), labels="exact")
        matrix.append([accuracy(model, u, *tasks[u][2:]) for u in range(task + 1)])
    if attachment:
        attachment.remove()
    return matrix


@torch.no_grad()
def accuracy(model: Network, task: int, x: Tensor, y: Tensor) -> float:
    return (model(x, task).argmax(1) == y).float().mean().item() * 100


def summary(matrix: list[list[float]]) -> tuple[float, float]:
    """Mean accuracy at the end, and its mean change since each task was learned."""
    last = matrix[-1]
    return sum(last) / len(last), sum(last[t] - matrix[t][t] for t in range(len(last) - 1)) / (len(last) - 1)


def main() -> None:
    torch.set_num_threads(1)
    print("Five tasks of digits with AdamW (lr 0.003, weight decay 0.05): test accuracy in percent")
    for protect, seed in ((protect, seed) for protect in (False, True) for seed in SEEDS):
        matrix = run(protect, seed)
        mean, change = summary(matrix)
        shown = "  ".join(f"{value:5.1f}" for value in matrix[-1])
        title = f"{'with' if protect else 'without'} BLIP, seed {seed}"
        print(f"{title:>20}: {shown}   mean {mean:.1f}, since learned {change:+.1f}")


if __name__ == "__main__":
    main()
