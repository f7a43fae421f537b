"""Bytes of state a parameter, and whether state or time grow with the number of tasks."""

import io
import warnings

import torch

import measure
import plain_networks as networks
from bitfreeze import BLIP


def measure_bytes() -> tuple[float, float]:
    """Bytes a parameter of what is saved, and of what is held while training."""
    model = networks.mlp()
    entries = sum(p.numel() for p in model.parameters())
    blip = BLIP(model)
    blip.consolidate([torch.randn(64, 784)])
    blip.clamp_()
    file = io.BytesIO()
    torch.save(blip.state_dict(), file)
    return file.tell() / entries, blip.nbytes(cache=True) / entries


def measure_growth(tasks: int = 200, window: int = 20) -> tuple[float, float]:
    """State at the last task by state at the first, and the same for the time of a task's end and a clamp.

    Times are the best of the first and of the last ``window`` tasks; the very first is left out, because it also solves
    for the prior.
    """
    torch.manual_seed(0)
    model = networks.mlp()
    blip = BLIP(model)
    sizes, times = [], []
    for _ in range(tasks):
        x = torch.randn(64, 784)
        started = measure.clock()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # random data soon exhaust a layer
            blip.consolidate([x])
        blip.clamp_()
        times.append(measure.clock() - started)
        sizes.append(blip.nbytes(cache=True))
    return sizes[-1] / sizes[0], min(times[-window:]) / min(times[1 : 1 + window])
