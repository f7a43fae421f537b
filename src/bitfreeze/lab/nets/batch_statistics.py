"""Statistics of a batch as constants, because a sample's own gradient must not depend on the rest of its batch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .multihead import MultiHead


@contextmanager
def fixed_statistics(net: MultiHead, x: Tensor, task: int) -> Iterator[None]:
    """Within this context, norms without statistics of their own use those of the samples ``x`` in eval mode."""
    norms = norms_by_batch(net)
    taken = [norm.register_forward_pre_hook(_take_statistics) for norm in norms]
    was_training = net.training
    try:
        try:
            with torch.no_grad():
                net.eval()(x, task)
        finally:
            net.train(was_training)
        yield
    finally:
        for norm, hook in zip(norms, taken, strict=True):
            hook.remove()
            norm.running_mean = norm.running_var = None


def norms_by_batch(net: nn.Module) -> list[_BatchNorm]:
    """The norms that use the statistics of the batch even in eval mode."""
    return [m for m in net.modules() if isinstance(m, _BatchNorm) and not m.track_running_stats]


def _take_statistics(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
    assert isinstance(norm, _BatchNorm)
    if norm.running_mean is None:
        over = [d for d in range(args[0].ndim) if d != 1]
        norm.running_var, norm.running_mean = torch.var_mean(args[0], over, correction=0)
