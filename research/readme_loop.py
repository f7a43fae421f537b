"""A loop by hand on digits that are held out: fine-tuning beside BLIP, five seeds.

python research/readme_loop.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP, Rules
from bitfreeze.lab.data.digits import load_digits

SEEDS, HELD_OUT = range(5), 0.2


class Model(nn.Module):
    """A small network with a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, 2) for _ in range(5))

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](self.backbone(x))


def accuracies(method: str, seed: int) -> list[list[float]]:
    """Accuracy on each task so far, after each task."""
    images, labels = load_digits()
    splits = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model, held, found = Model(), [], []
    rules = {"directions": Rules.directions(), "strict": Rules.strict()}
    blip = BLIP(model, watch=model.backbone, rules=rules[method]) if method in rules else None
    if blip is not None:
        blip.attach()
    for task in range(5):
        mine = (labels // 2 == task).nonzero().flatten()
        mine = mine[torch.randperm(len(mine), generator=splits)]
        x, y = images[mine].flatten(1) / 16, labels[mine] % 2
        cut = int(HELD_OUT * len(mine))
        held.append((x[:cut], y[:cut]))
        data = torch.utils.data.TensorDataset(x[cut:], y[cut:])
        loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(5):
            for inputs, targets in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs, task), targets).backward()
                optimizer.step()
        if blip is not None:
            blip.consolidate(loader, forward=lambda inputs, task=task: model(inputs, task))
        with torch.no_grad():
            found.append([100 * (model(x, t).argmax(1) == y).float().mean().item() for t, (x, y) in enumerate(held)])
    return found


def main() -> None:
    print("| method | ACC | BWT | last task |\n| --- | --- | --- | --- |")
    for method in ("ft", "strict", "directions"):
        matrices = torch.tensor([[row + [0.0] * (5 - len(row)) for row in accuracies(method, s)] for s in SEEDS])
        last, learned = matrices[:, -1], matrices.diagonal(dim1=1, dim2=2)
        change = (last - learned)[:, :-1].mean(1)
        print(f"| {method} | {last.mean():.1f} | {change.mean():.1f} | {last[:, -1].mean():.1f} |")


if __name__ == "__main__":
    main()
