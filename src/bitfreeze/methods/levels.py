"""Levels: what each unit gets from its layer's mean input, held as firmly as the unit's bias is.

A diagonal Fisher takes a unit's n weights for independent. But inputs that have passed a ReLU are positive: if all n
weights move up together, each within its own interval, the unit is shifted as by a bias, and that by up to n times what
the bias's interval allows (some sqrt(n) times where released rules widen it). So with m the mean input of the tasks so
far, and w° the weights that the last task left,

    |(w - w°) m| <= the radius of the bias's interval

is kept after each step by the closest weights for which it holds.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from ..blip import BLIP
from ..distributed import world


class Levels:
    """Of the linear and convolutional layers of a backbone that have a bias, by their names."""

    def __init__(self, backbone: nn.Module) -> None:
        self.layers = {name: layer for name, layer in backbone.named_modules() if _has_levels(layer)}
        if not self.layers:
            raise ValueError(
                "levels=true holds layers within the intervals of their biases, and no linear or convolutional layer "
                "of this network has one: leave it out"
            )
        self.tasks = 0
        self.means: dict[str, Tensor] = {}  # input, over samples, positions and tasks
        self.levels: dict[str, Tensor] = {}  # w° m
        self.radii: dict[str, Tensor] = {}  # of the bias's interval

    @torch.no_grad()
    def measure(self, blip: BLIP, batches: Iterable[tuple[Tensor, Tensor]], forward: Callable[[Tensor], Any]) -> None:
        """At a task's end, when BLIP has frozen its bits."""
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
        """After a step: weights of units whose level has moved too far go back along the mean input."""
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
        ranks = world()
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


def rows(weight: Tensor) -> Tensor:
    """The weights of each unit, one after another."""
    return weight.detach().view(len(weight), -1)


def _sum_of_inputs(layer: nn.Module, x: Tensor, outputs: Tensor) -> Tensor:
    """What meets the weights of a unit, summed over samples and positions.

    That is the gradient of the sum of all that the unit gives out, so a convolution's windows need not be laid out.
    """
    if not isinstance(layer, nn.Conv2d):
        return x.flatten(0, -2).sum(0)
    of_one_unit: Tensor = conv2d_weight(
        x, (1, *layer.weight.shape[1:]), torch.ones_like(outputs[:, :1]), layer.stride, layer.padding, layer.dilation
    )  # type: ignore[no-untyped-call]
    return of_one_unit.flatten()
