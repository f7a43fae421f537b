"""Norms that use the statistics of the batch, made such that a sample's gradient does not depend on its batch.

(z - mean) / deviation, with z = W a and the mean over a batch, equals W (a - mean of a) / deviation. So the mean is
taken off the inputs of the layer before the norm, and the gradient of W is that of a norm whose mean follows W: a
change of W along the mean input has no effect. Deviations are constants.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .multihead import MultiHead

Layer = nn.Linear | nn.Conv2d


@contextmanager
def fixed_statistics(net: MultiHead, x: Tensor, task: int) -> Iterator[None]:
    """Within this context, norms without statistics of their own use those of the samples ``x`` in eval mode."""
    with ExitStack() as stack:
        for layer, mean in _means_before_norms(net, x, task).items():
            stack.callback(layer.register_forward_pre_hook(_Centring(mean)).remove)
        norms = norms_by_batch(net)
        for norm in norms:
            stack.callback(_forget_statistics, norm)
            stack.callback(norm.register_forward_pre_hook(_take_statistics).remove)
        _pass(net, x, task)
        yield


def norms_by_batch(net: nn.Module) -> list[_BatchNorm]:
    """The norms that use the statistics of the batch even in eval mode."""
    return [m for m in net.modules() if isinstance(m, _BatchNorm) and not m.track_running_stats]


def _means_before_norms(net: MultiHead, x: Tensor, task: int) -> dict[Layer, Tensor]:
    """Mean input by channel of each layer whose output is what a norm by batch sees.

    Convolutions that pad are left out: their inputs minus the mean would have another rim.
    """
    outputs: dict[int, tuple[Layer, Tensor, Tensor]] = {}  # by identity, with the layer and its input
    found: dict[Layer, Tensor] = {}

    def note(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, Layer)
        outputs[id(output)] = layer, args[0], output

    def match(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        if id(args[0]) in outputs:
            layer, a, _ = outputs[id(args[0])]
            found[layer] = a.mean([d for d in range(a.ndim) if d != 1], keepdim=True)

    plain = [m for m in net.modules() if isinstance(m, nn.Linear) or (isinstance(m, nn.Conv2d) and not any(m.padding))]
    with ExitStack() as stack:
        for layer in plain:
            stack.callback(layer.register_forward_hook(note).remove)
        for norm in norms_by_batch(net):
            stack.callback(norm.register_forward_pre_hook(match).remove)
        _pass(net, x, task)
    return found


@torch.no_grad()
def _pass(net: MultiHead, x: Tensor, task: int) -> None:
    """A forward pass in eval mode. The mode is put back."""
    was_training = net.training
    try:
        net.eval()(x, task)
    finally:
        net.train(was_training)


class _Centring:
    """Takes a mean off a layer's input."""

    def __init__(self, mean: Tensor) -> None:
        self.mean = mean

    def __call__(self, layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0] - self.mean, *args[1:])


def _take_statistics(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
    assert isinstance(norm, _BatchNorm)
    if norm.running_mean is None:
        over = [d for d in range(args[0].ndim) if d != 1]
        norm.running_var, norm.running_mean = torch.var_mean(args[0], over, correction=0)


def _forget_statistics(norm: _BatchNorm) -> None:
    norm.running_mean = norm.running_var = None
