"""Taps record each layer's input, and the edge of the autograd graph that gives the gradient of its output."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from ..model.undo import LAST
from .registry import CONVOLUTIONS, convolves_inside


class Call:
    """One call of a layer. It takes the edge at once, before an operation can change the output in place."""

    def __init__(self, layer: nn.Module, a: Tensor, output: Tensor) -> None:
        self.layer = layer  # as rules see it
        self.a = a
        self.version = a._version
        self.shape = output.shape
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

    def record(self, layer: nn.Module, call: Call | None) -> None:
        self.calls.setdefault(layer, []).append(call)

    def _hook(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        a = args[0] if args else kwargs.get("input")
        self.record(layer, Call(layer, a, output) if isinstance(a, Tensor) and isinstance(output, Tensor) else None)


@contextmanager
def tapped(layers: Iterable[nn.Module]) -> Iterator[Taps]:
    """Record the calls of these layers. The hook runs first, so it sees what the layer itself returned."""
    taps, inside = Taps(), {}
    with ExitStack() as stack, LAST:
        for layer in layers:
            if convolves_inside(layer):
                inside[id(layer._parameters.get("weight"))] = layer
            else:
                handle = layer.register_forward_hook(taps._hook, prepend=True, with_kwargs=True)
                stack.callback(handle.remove)
        if inside:
            stack.enter_context(_InnerConvolutions(taps, inside))
        yield taps


def forget_taps(model: nn.Module) -> None:
    """Remove the hooks of all taps from a model: Ctrl-C may have come between adding a hook and noting it."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(getattr(hook, "__self__", None), Taps):
                module._forward_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_always_called.pop(key, None)
                del module._forward_hooks[key]


class _InnerConvolutions(TorchFunctionMode):
    """Records calls of torch's convolutions with the weight of a layer, by the weight's id, wherever they are made."""

    def __init__(self, taps: Taps, layers: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.taps, self.layers = taps, layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in _FUNCTIONS:
            self._record(_FUNCTIONS[func], output, *args, **(kwargs or {}))
        return output

    def _record(
        self, kind: Any, output: Tensor, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> None:  # fmt: skip
        """Record the call as one of the plain layer that computes the same."""
        layer = self.layers.get(id(weight))
        if layer is not None:
            outputs, inputs, *kernel = weight.shape
            has_bias = layer._parameters.get("bias") is not None
            plain = kind(inputs * groups, outputs, kernel, stride, padding, dilation, groups, has_bias, device="meta")
            self.taps.record(layer, Call(plain, input, output))


_FUNCTIONS = dict(zip((torch.conv1d, torch.conv2d, torch.conv3d), CONVOLUTIONS, strict=True))


def output_gradients(score: Tensor, calls: list[Call], keep_graph: bool) -> list[Tensor | None]:
    """d score / d output of each call. No gradients of parameters are computed."""
    edges = [call.edge for call in calls if call.edge is not None]
    if not edges or not score.requires_grad:
        return [None] * len(calls)
    found = iter(torch.autograd.grad(score, edges, retain_graph=keep_graph, allow_unused=True))
    return [None if call.edge is None else next(found) for call in calls]
