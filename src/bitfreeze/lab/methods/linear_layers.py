"""Modules of a method's own in the place of a backbone's linear layers."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from ..nets import MultiHead

Own = TypeVar("Own", bound=nn.Module)


def replace_linear_layers(net: MultiHead, method: str, own: Callable[[nn.Linear], Own]) -> list[Own]:
    """Fix the backbone and put ``own(layer)`` in the place of each of its linear layers; returns what was put there."""
    places = [
        (module, name, layer)
        for module in net.backbone.modules()
        for name, layer in module.named_children()
        if isinstance(layer, nn.Linear)
    ]
    if not places:
        raise ValueError(f"{method} needs a backbone with linear layers, and this network has none; use another method")
    net.backbone.requires_grad_(False)
    replaced = [own(layer) for _, _, layer in places]
    for (module, name, _), layer in zip(places, replaced, strict=True):
        setattr(module, name, layer)
    return replaced
