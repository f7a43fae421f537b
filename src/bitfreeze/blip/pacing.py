"""How often layers are clamped along all directions: their paces follow what clamps have cost, which the host reads.

On a device other than the CPU a read waits for all that was asked of the device. So costs are read rarely there, and
those of all layers at once; paces and the width of intervals follow some steps later.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..model.devices import numbers_of
from .held_tensor import HeldTensor
from .turned_layer import TurnedLayer

READ_EVERY = 8  # steps on a device other than the CPU between two reads
MOST_OFTEN = 16  # times as often as a layer with one position
Layers = Mapping[str, TurnedLayer]
Progress = tuple[int, int, float, torch.Tensor | None]


def times_as_often(layer: TurnedLayer) -> int:
    """How many times as often as a layer with one position this one is clamped."""
    return min(layer.turning.positions, MOST_OFTEN)


def settle(layers: Layers, alone: Iterable[HeldTensor], every: int) -> float:
    """Read what the last clamps of layers have cost, and set their paces, with at most ``every`` steps between clamps.

    Returns the cost of the tensors ``alone``, which are held entry by entry. All numbers are read at once.
    """
    waiting = [(layer, layer.unread) for layer in layers.values() if layer.unread is not None]
    numbers = numbers_of([*(costs for _, costs in waiting), *(state.cost() for state in alone)])
    for (layer, _), (before, after) in zip(waiting, numbers, strict=False):
        layer.settle(before, after, max(1, every // times_as_often(layer)))
    return float(sum(cost for (cost,) in numbers[len(waiting) :]))


def progress_of(layer: TurnedLayer) -> Progress:
    return layer.pace, layer.since, layer.spent, layer.unread


def set_progress(layer: TurnedLayer, progress: Progress) -> None:
    layer.pace, layer.since, layer.spent, layer.unread = progress


def state_of(layers: Layers) -> dict[str, Any]:
    """The progress of layers as plain values, by their names."""
    return {
        "paces": {name: [layer.pace, layer.since, layer.spent] for name, layer in layers.items()},
        "unread": {name: layer.unread.tolist() for name, layer in layers.items() if layer.unread is not None},
    }


def load_state(layers: Layers, state: Mapping[str, Any], new_name: Callable[[str], str]) -> None:
    """Give layers the progress that ``state_of`` saved."""
    paces = {new_name(name): pace for name, pace in state["paces"].items()}
    unread = {new_name(name): costs for name, costs in state["unread"].items()}
    for name, layer in layers.items():
        costs = torch.tensor(unread[name]).to(layer.radius) if name in unread else None
        pace, since, spent = paces[name]
        set_progress(layer, (pace, since, spent, costs))
