"""Levels: a guard on the response of each unit to its layer's mean input.

A diagonal Fisher takes a unit's n weights for independent. But inputs behind a ReLU are positive. If all n weights move
up together, each within its own interval, they shift the unit as its bias would, by up to n times what the bias's
interval allows (about sqrt(n) times where released rules widen that interval). Let m be the mean input of the tasks so
far, and w° the weights that the last task left. After each step the guard moves the weights to the closest ones with

    |(w - w°) m| <= radius of the bias's interval.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..fisher.factors import find_factors, has_inputs_first, joined_parameters
from ..fisher.statistics import MeanInputs
from ..model.layers import rows
from ..model.ranks import Ranks
from .guards import Look, Measured
from .intervals import Intervals
from .tensor_state import TensorState


class Levels:
    """Levels of the watched layers that have one group and a bias, by the name of the weight."""

    passes = 1

    def __init__(self, intervals: Intervals) -> None:
        self.intervals = intervals
        self.tasks = 0
        self.means: dict[str, Tensor] = {}  # mean input over samples, positions and tasks
        self.levels: dict[str, Tensor] = {}  # w° m
        self.radii: dict[str, Tensor] = {}  # radius of the bias's interval
        if not self._layers(intervals.current()):
            raise ValueError(
                "levels=True needs a watched linear or convolutional layer with a bias, got a model without one; leave "
                "levels out"
            )

    def bind(self) -> None:
        """Nothing to do: the intervals have bound the parameters."""

    @torch.no_grad()
    def hold_(self, optimizer: Optimizer | None = None) -> bool:
        """After a step, move the weights of units whose level has gone too far back along the mean input."""
        held = self.intervals.states if optimizer is None else {s.slot.name for s in self.intervals.held_by(optimizer)}
        for name, mean in self.means.items():
            if name not in held:
                continue
            # rows that were added since the last task have no level yet
            weight = rows(self.intervals.states[name].local)[: len(self.levels[name])]
            if mean.device != weight.device:
                mean = self._follow(name, weight.device)
            shift = torch.addmv(self.levels[name], weight, mean, beta=-1)
            excess = shift - shift.clamp(-self.radii[name], self.radii[name])
            if not weight.is_cpu or excess.any():  # on another device a look at the values would wait for it
                weight.addr_(excess / mean.square().sum(), mean, alpha=-1)
        return bool(held)

    def _follow(self, name: str, device: torch.device) -> Tensor:
        """Move what is kept of a layer to the device of its weight; returns the mean input."""
        for held in (self.means, self.levels, self.radii):
            held[name] = held[name].to(device)
        return self.means[name]

    def measure(self, look: Look, ranks: Ranks) -> Measured:
        layers = self._layers(self.intervals.states)
        found = {name: MeanInputs(weight.slot.module) for name, (weight, _) in layers.items()}
        estimate = look(
            statistics={layers[name][0].slot.module: [mean] for name, mean in found.items()},
            skip=list(self.intervals.states),
        )
        means = {}
        for name, statistic in found.items():
            if not estimate.statistics[layers[name][0].slot.module]:
                mean = ranks.broadcast_(statistic.mean()[0, :-1].contiguous())
                before = self.means.get(name, torch.zeros_like(mean)).to(mean.device)
                means[name] = before + (mean - before) / (self.tasks + 1)
        return Measured(means)

    @torch.no_grad()
    def commit(self, measured: Measured) -> None:
        """Take the levels of the weights as they are. The intervals have committed before."""
        self.tasks += 1
        self.means |= measured.after
        layers = self._layers(self.intervals.states)
        for name in measured.after:
            weight, bias = layers[name]
            low, high = bias.interval()
            self.levels[name] = rows(weight.local) @ self.means[name]
            self.radii[name] = (high - low) / 2

    def _layers(self, states: Mapping[str, TensorState]) -> dict[str, tuple[TensorState, TensorState]]:
        """States of weight and bias, by the name of the weight."""
        by_place = {(id(s.slot.module), s.slot.owners[0][1]): s for s in states.values() if not s.layout.sharded}
        found = {}
        for name, state in states.items():
            layer = state.slot.module
            if find_factors(layer)[0] is None or getattr(layer, "groups", 1) != 1 or has_inputs_first(layer):
                continue
            parts = [by_place.get((id(layer), attribute)) for attribute in joined_parameters(layer)]
            if len(parts) == 2 and parts[0] is state and parts[1] is not None:
                found[name] = state, parts[1]
        return found

    def nbytes(self, cache: bool) -> int:
        return sum(t.nbytes for held in (self.means, self.levels, self.radii) for t in held.values())

    def state_dict(self, sharded: bool) -> dict[str, Any]:
        held = {name: getattr(self, name) for name in ("means", "levels", "radii")}
        return {"levels": {"tasks": self.tasks, **{k: {n: t.clone() for n, t in v.items()} for k, v in held.items()}}}

    def load_state_dict(self, state: Mapping[str, Any], new_name: Callable[[str], str]) -> None:
        saved = state["levels"]
        self.tasks = saved["tasks"]
        self.means, self.levels, self.radii = (
            {new_name(name): tensor.clone() for name, tensor in saved[kind].items()}
            for kind in ("means", "levels", "radii")
        )
