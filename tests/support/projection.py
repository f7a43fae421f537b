"""Second implementations of GPM and SGP, from the formulas of their papers, and tools to measure real steps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze.lab.methods import Method
from bitfreeze.lab.nets import MultiHead
from bitfreeze.lab.tasks import Batch, Task

from .small_tasks import TASKS


def normalised() -> MultiHead:
    """Convolutions with stride and padding, layers with and without biases, norms with the statistics of the batch."""
    backbone = nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6, track_running_stats=False), nn.ReLU(),
        nn.Conv2d(6, 8, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(72, 20, bias=False), nn.BatchNorm1d(20, track_running_stats=False), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(20, 16), nn.ReLU(),
    )  # fmt: skip
    return MultiHead(backbone, 16, [task.classes for task in TASKS])


def joined(layer: nn.Module) -> Tensor:
    """[W b] in float64."""
    parts = [layer.weight.detach().flatten(1)] + ([] if layer.bias is None else [layer.bias.detach()[:, None]])
    return torch.cat(parts, 1).double()


def representation(layer: nn.Module, x: Tensor) -> Tensor:
    """R [width, inputs] of a layer's input x, with a row of ones for a bias."""
    if isinstance(layer, nn.Conv2d):
        columns = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        r = columns.transpose(0, 1).flatten(1)
    else:
        r = x.T
    return (r if layer.bias is None else torch.cat([r, torch.ones_like(r[:1])])).double()


def representations(method: Method, x: Tensor, task: Task) -> dict[str, Tensor]:
    """R of each layer, from one pass in eval mode."""
    seen: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
        for name, layer in method.layers.items()
    ]
    method.net.eval()
    with torch.no_grad():
        method.net.features(x, task.index)
    for hook in hooks:
        hook.remove()
    return {name: representation(layer, seen[name]) for name, layer in method.layers.items()}


def reference(r: Tensor, basis: Tensor, importances: Tensor, threshold: float, alpha: float) -> tuple[Tensor, Tensor]:
    """Basis and importances after a task, by singular value decompositions of R and one direction at a time."""
    total, rest = r.square().sum(), r - basis @ (basis.T @ r)
    u, s, _ = torch.linalg.svd(rest, full_matrices=False)
    count = 0
    while 1 - (rest.square().sum() - s[:count].square().sum()) / total < threshold:
        count += 1
    sigma = torch.cat([torch.stack([(m @ r).norm() for m in basis.T]) if basis.shape[1] else s[:0], s[:count]])
    now = (alpha + 1) * sigma / (alpha * sigma + sigma.max())
    now[: len(importances)] = (now[: len(importances)] + importances).clamp(0, 1)
    return torch.cat([basis, u[:, :count]], 1), now


def projector(basis: Tensor, weights: Tensor | None = None) -> Tensor:
    m = basis.double()
    return (m if weights is None else m * weights.double()) @ m.T


def steps(method: Method, task: Task, x: Tensor, count: int = 5, lr: float = 0.1) -> dict[str, Tensor]:
    """Change of [W b] of each layer over real training steps."""
    before = {name: joined(layer) for name, layer in method.layers.items()}
    optimizers = method.optimizers(task, lr)
    method.net.train()
    for _ in range(count):
        method.train_batch(Batch(x, torch.arange(len(x)) % task.classes, task), 0.0, optimizers)
    return {name: joined(layer) - before[name] for name, layer in method.layers.items()}
