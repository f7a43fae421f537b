"""What a Fisher estimate costs, against a plain forward and backward pass over the same samples."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import diagonal_fisher
from measure import ratio


def measure_fisher(model: nn.Module, x: Tensor, y: Tensor, batch: int, rounds: int) -> float:
    batches = list(zip(x.split(batch), y.split(batch), strict=True))
    return ratio(lambda: diagonal_fisher(model, batches), lambda: _plain(model, batches), rounds)[0]


def measure_torch_func(model: nn.Module, x: Tensor, y: Tensor, batch: int, rounds: int) -> float:
    """The general way without rules: vmap(grad) over the samples of each batch."""
    batches = list(zip(x.split(batch), y.split(batch), strict=True))
    return ratio(lambda: _torch_func(model, batches), lambda: _plain(model, batches), rounds)[0]


def _plain(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    model.eval()
    for x, y in batches:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()


def _torch_func(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    model.eval()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, values, (x[None],)), y[None])

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=10)
    for x, y in batches:
        for gradient in per_sample(parameters, x, y).values():
            gradient.square().sum(0)
