"""Layers that can be held along directions: the states of their weights and biases, and what happens if they part."""

from collections.abc import Mapping

import torch
from torch import nn

from ..fisher.factors import find_factors, joined_parameters, joined_shape
from .held_tensor import HeldTensor
from .turned_layer import TurnedLayer
from .turning import Turning

Joined = tuple[HeldTensor, HeldTensor | None]  # weight and bias
States = Mapping[str, HeldTensor]


def joined_layers(states: States) -> dict[str, Joined]:
    """States of weight and bias of the layers that can be held along directions, by the name of the weight."""
    found: dict[str, Joined] = {}
    by_place = {
        (id(state.slot.module), state.slot.owners[0][1]): state
        for state in states.values()
        if len(state.slot.owners) == 1 and not state.layout.sharded and state.slot.find() is not None
        if state.local.numel()
    }
    for name, state in states.items():
        layer = state.slot.module
        if find_factors(layer)[0] is None or _is_depthwise(layer):
            continue
        parts = [by_place.get((id(layer), attribute)) for attribute in joined_parameters(layer)]
        if parts and parts[0] is state and None not in parts:
            found[name] = state, (parts[1] if len(parts) > 1 else None)
    return found


def fits(turning: Turning, parts: Joined) -> bool:
    """Whether these are coordinates of this layer."""
    return turning.fits([part.local for part in parts if part is not None])


def names_of(parts: Joined) -> list[str]:
    return [part.slot.name for part in parts if part is not None]


def _is_depthwise(layer: nn.Module) -> bool:
    """Whether each output has inputs of its own: then the few weights of an output are held one by one."""
    groups, outputs, _ = joined_shape(layer)
    return groups > 1 and outputs == 1


def come_apart(states: States, name: str, turning: Turning, former: TurnedLayer | None) -> None:
    """Spread the Fisher of a layer over its entries: its bias is gone, or it was pruned, sharded or tied."""
    weight = states[name]
    width = turning.inputs.shape[1]
    shape = None if weight.shape is None else turning.shape_by_rows(weight.shape)
    inputs = width if shape is None else shape[1:].numel()
    parts = [weight, *_biases_of(states, weight, shape)]
    if former is not None:
        parts = [states[part.slot.name] for part in former.parts]
    for part, spread in zip(parts, torch.split(turning.spread(), [inputs, width - inputs], -1), strict=False):
        if part.centre is not None and part.shape is not None and spread.numel():
            shape = turning.shape_by_rows(part.shape)
            of_rows = spread.flatten(0, 1)[: shape[0]]  # a bias that is gone may have fewer rows than the weight
            own = part.layout.part(turning.by_rows(of_rows.reshape(shape))).to(part.centre)
            part.fisher = own if part.fisher is None else part.fisher + own
            part.forget_caches()


def _biases_of(states: States, weight: HeldTensor, shape: torch.Size | None) -> list[HeldTensor]:
    module, rows = weight.slot.module, None if shape is None else shape[:1]
    return [state for state in states.values() if state.slot.module is module and state.shape == rows]
