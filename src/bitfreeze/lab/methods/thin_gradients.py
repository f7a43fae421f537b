"""Gradients of linear layers as thin products: a batch of few samples gives a weight a gradient of low rank."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class ThinGradient:
    """delta^T x: the gradient of a joined matrix [w b], in as many rows as the batch has positions."""

    x: Tensor  # [rows, i], with a last column of 1 if the layer has a bias
    delta: Tensor | None = None  # [rows, o], once the backward pass was there


class ThinGradients:
    """What linear layers have seen in the last passes forward and back, where that is fewer rows than they are wide."""

    def __init__(self) -> None:
        self.found: dict[nn.Module, list[ThinGradient] | None] = {}  # None: too many rows

    @contextmanager
    def recorded(self, layers: Iterable[nn.Module]) -> Iterator[None]:
        """Record the forward passes in this block, and later the gradients of what they give out."""
        self.found = {}
        handles = [layer.register_forward_hook(self._note) for layer in layers if isinstance(layer, nn.Linear)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        x = args[0].detach().flatten(0, -2).to(layer.weight.dtype)
        calls = self.found.setdefault(layer, [])
        if calls is None or not output.requires_grad:
            return
        if 4 * (len(x) + sum(len(call.x) for call in calls)) > min(layer.weight.shape):
            self.found[layer] = None  # the product with the whole gradient is as fast
            return
        call = ThinGradient(x if layer.bias is None else torch.cat([x, x.new_ones(len(x), 1)], -1))
        calls.append(call)
        output.register_hook(lambda delta: setattr(call, "delta", delta.flatten(0, -2).to(x.dtype)))  # type: ignore[no-untyped-call]

    def between(self, layer: nn.Module, left: Tensor, right: Tensor) -> Tensor | None:
        """left @ gradient @ right for symmetric left [o, o] and right [i, i]; None where the gradient is not thin."""
        calls = self.found.get(layer)
        if not calls:
            return None
        products = [(call.delta @ left).mT @ (call.x @ right) for call in calls if call.delta is not None]
        return torch.stack(products).sum(0) if products else None
