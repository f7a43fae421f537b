"""The two passes at a task's end: the directions of layers, and the Fisher along them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..fisher import FisherEstimate
from ..fisher.factors import has_inputs_first
from ..fisher.statistics import SecondMoments
from ..fisher.turned_fisher import TurnedFisher
from ..model.ranks import Ranks
from .guards import Look
from .joined_layers import Joined, names_of
from .rules import DirectionRules
from .turning import Turning

Layers = Mapping[str, Joined]


def find_directions(
    layers: Layers,
    before: Mapping[str, Turning],
    watched: Iterable[str],
    rules: DirectionRules,
    look: Look,
    ranks: Ranks,
) -> tuple[dict[str, Turning], dict[str, str]]:
    """First pass: strongest directions of the layers' inputs and output gradients, over all tasks so far.

    Returns the directions, and of each layer without them the reason.
    """
    if not layers:
        return {}, {}
    moments = {name: SecondMoments(weight.slot.module) for name, (weight, _) in layers.items()}
    found = look(
        statistics={layers[name][0].slot.module: [moment] for name, moment in moments.items()},
        skip=list(watched),
        samples=rules.moment_samples,
    )
    turns, reasons = {}, {}
    for name, moment in moments.items():
        reason = found.statistics[layers[name][0].slot.module]
        if not reason:
            turning = _turning(moment, before.get(name), rules)
            turns[name] = replace(turning, inputs_first=has_inputs_first(layers[name][0].slot.module))
            for tensor in turns[name].tensors().values():
                ranks.broadcast_(tensor)
        else:
            reasons[name] = reason
    return turns, reasons


def _turning(moment: SecondMoments, before: Turning | None, rules: DirectionRules) -> Turning:
    """Directions of this task and of those before it, with their energies. The Fisher is still to be measured."""
    if before is not None and not rules.refit:
        return replace(before, fisher=torch.zeros_like(before.fisher))
    groups, outputs, inputs = moment.shape
    most = rules.strongest or max(outputs, inputs)
    if rules.sides == "outputs":
        u, input_energy = _as_they_are(moment, inputs)
    else:
        earlier = None if before is None else (before.inputs, before.input_energy)
        u, input_energy = moment.strongest_inputs(min(most, inputs), earlier)
    if rules.sides == "inputs":
        v, output_energy = _as_they_are(moment, outputs)
    else:
        earlier = None if before is None else (before.outputs, before.output_energy)
        v, output_energy = moment.strongest_outputs(min(most, outputs), earlier)
    fisher = u.new_zeros(groups, v.shape[-1], u.shape[-1])
    # contiguous, as they come back from a file: the strides of a factor decide the last bits of a product
    u, v, input_energy, output_energy = (part.contiguous() for part in (u, v, input_energy, output_energy))
    return Turning(u, v, input_energy, output_energy, fisher, positions=moment.positions)


def _as_they_are(moment: SecondMoments, width: int) -> tuple[Tensor, Tensor]:
    """Directions of a side that is not turned, and energies, which nobody asks for."""
    groups = moment.shape[0]
    directions = torch.eye(width, **moment.like).expand(groups, -1, -1).contiguous()
    return directions, torch.ones(groups, width, **moment.like)


def measure_along(
    layers: Layers, turns: Mapping[str, Turning], reasons: dict[str, str], look: Look
) -> tuple[dict[str, Turning], FisherEstimate, dict[str, TurnedFisher]]:
    """Second pass: the Fisher of these layers along their directions, and that of all other tensors.

    Returns the directions of the layers that could be measured along them, the estimate, and the Fisher along them.
    Without the others, whose reasons are added to ``reasons``, the pass is made again.
    """
    found = {
        name: TurnedFisher(layers[name][0].slot.module, turning.inputs, turning.outputs, others=True)
        for name, turning in turns.items()
    }
    skip = [part for name in turns for part in names_of(layers[name])]
    statistics = {layers[name][0].slot.module: [statistic] for name, statistic in found.items()}
    estimate = look(statistics=statistics, skip=skip)
    failed = {name: reason for name in turns if (reason := estimate.statistics[layers[name][0].slot.module])}
    if not failed:
        return dict(turns), estimate, found
    reasons.update(failed)
    return measure_along(layers, {name: turn for name, turn in turns.items() if name not in failed}, reasons, look)
