"""Taps record each layer's input, and the edge of the autograd graph that gives the gradient of its output."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge


class Call:
    """One call of a layer. It takes the edge at once, before an operation can change the output in place."""

    def __init__(self, a: Tensor, output: Tensor) -> None:
        self.a = a
        self.version = a._version
        self.samples = output.shape[0] if output.ndim else 0
        self.edge: GradientEdge | None = get_gradient_edge(output) if output.requires_grad else None

    def fits(self, n: int) -> bool:
        """Whether the first axis can be n samples, and the input has not been changed in place since the call."""
        return self.a.ndim > 0 and len(self.a) == n == self.samples and self.a._version == self.version


class Taps:
    """Calls of each tapped layer in one forward pass. None stands for a call without a tensor in or out."""

    def __init__(self) -> None:
        self.calls: dict[nn.Module, list[Call | None]] = {}

    def single(self, layer: nn.Module, n: int) -> Call | None:
        """The layer's only call, or None if there were several or if the call does not fit n samples."""
        calls = self.calls.get(layer, [])
        call = calls[0] if len(calls) == 1 else None
        return call if call is not None and call.fits(n) else None

    def _record(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        a = args[0] if args else kwargs.get("input")
        call = Call(a, output) if isinstance(a, Tensor) and isinstance(output, Tensor) else None
        self.calls.setdefault(layer, []).append(call)


@contextmanager
def tapped(layers: Iterable[nn.Module]) -> Iterator[Taps]:
    """Record the calls of these layers. The hook runs first, so it sees what the layer itself returned."""
    taps = Taps()
    handles = [layer.register_forward_hook(taps._record, prepend=True, with_kwargs=True) for layer in layers]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


def output_gradients(score: Tensor, calls: list[Call], keep_graph: bool) -> list[Tensor | None]:
    """d score / d output of each call. No gradients of parameters are computed."""
    edges = [call.edge for call in calls if call.edge is not None]
    if not edges or not score.requires_grad:
        return [None] * len(calls)
    found = iter(torch.autograd.grad(score, edges, retain_graph=keep_graph, allow_unused=True))
    return [None if call.edge is None else next(found) for call in calls]
