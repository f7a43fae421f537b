"""Levels: a guard on the response of each unit to its layer's mean input.

A diagonal Fisher takes a unit's n weights for independent. But inputs behind a ReLU are positive. If all n weights move
up together, each within its own interval, they shift the unit as its bias would, by up to n times what the bias's
interval allows (about sqrt(n) times where released rules widen that interval). Let m be the mean input of the tasks so
far, and w° the weights that the last task left. After each step the guard moves the weights to the closest ones with

    |(w - w°) m| <= radius of the bias's interval.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from ..model.layers import rows
from ..model.ranks import current_ranks
from .blip import BLIP


class Levels:
    """Levels of the linear and convolutional layers of a backbone that have a bias, by name."""

    def __init__(self, backbone: nn.Module) -> None:
        self.layers = {name: layer for name, layer in backbone.named_modules() if _has_levels(layer)}
        if not self.layers:
            raise ValueError(
                "levels=true needs a linear or convolutional layer with a bias, got a network without one; leave it out"
            )
        self.tasks = 0
        self.means: dict[str, Tensor] = {}  # mean input over samples, positions and tasks
        self.levels: dict[str, Tensor] = {}  # w° m
        self.radii: dict[str, Tensor] = {}  # radius of the bias's interval

    @torch.no_grad()
    def measure(self, blip: BLIP, batches: Iterable[tuple[Tensor, Tensor]], forward: Callable[[Tensor], Any]) -> None:
        """Measure levels at a task's end, after ``blip`` has frozen its bits."""
        self.tasks += 1
        ends = blip.intervals()
        for name, mean in self._mean_inputs(batches, forward).items():
            before = self.means.get(name, torch.zeros_like(mean))
            self.means[name] = before + (mean - before) / self.tasks
            self.levels[name] = rows(self.layers[name].weight) @ self.means[name]
            low, high = ends[f"backbone.{name}.bias"]
            self.radii[name] = (high - low) / 2

    @torch.no_grad()
    def hold_(self) -> None:
        """After a step, move the weights of units whose level has gone too far back along the mean input."""
        for name, mean in self.means.items():
            weight = rows(self.layers[name].weight)
            shift = torch.addmv(self.levels[name], weight, mean, beta=-1)
            excess = shift - shift.clamp(-self.radii[name], self.radii[name])
            if excess.any():
                weight.addr_(excess / mean.square().sum(), mean, alpha=-1)

    def _mean_inputs(
        self, batches: Iterable[tuple[Tensor, Tensor]], forward: Callable[[Tensor], Any]
    ) -> dict[str, Tensor]:
        sums = {name: torch.zeros_like(rows(layer.weight)[0]) for name, layer in self.layers.items()}
        counts = dict.fromkeys(self.layers, 0)

        def tap(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def add(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
                sums[name] += _sum_of_inputs(layer, inputs[0], outputs)
                counts[name] += outputs.numel() // len(rows(layer.get_parameter("weight")))

            return add

        taps = [layer.register_forward_hook(tap(name)) for name, layer in self.layers.items()]
        try:
            for x, _ in batches:
                forward(x)
        finally:
            for handle in taps:
                handle.remove()
        ranks = current_ranks()
        totals = {name: ranks.sum_(total) for name, total in sums.items()}
        seen = {name: sum(ranks.gather(count)) for name, count in counts.items()}
        return {name: total / seen[name] for name, total in totals.items() if seen[name]}

    def nbytes(self) -> int:
        return sum(t.nbytes for held in (self.means, self.levels, self.radii) for t in held.values())

    def state_dict(self) -> dict[str, Any]:
        return {"tasks": self.tasks, "means": self.means, "levels": self.levels, "radii": self.radii}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tasks = state["tasks"]
        self.means, self.levels, self.radii = (dict(state[name]) for name in ("means", "levels", "radii"))


def _has_levels(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.bias is not None and layer.groups == 1 and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear) and layer.bias is not None


def _sum_of_inputs(layer: nn.Module, x: Tensor, outputs: Tensor) -> Tensor:
    """Sum of a unit's inputs over samples and positions.

    It is the gradient of the unit's summed output, so a convolution's patches need not be laid out.
    """
    if not isinstance(layer, nn.Conv2d):
        return x.flatten(0, -2).sum(0)
    of_one_unit: Tensor = conv2d_weight(
        x, (1, *layer.weight.shape[1:]), torch.ones_like(outputs[:, :1]), layer.stride, layer.padding, layer.dilation
    )  # type: ignore[no-untyped-call]
    return of_one_unit.flatten()
