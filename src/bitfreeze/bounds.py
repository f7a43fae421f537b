"""The range of each tensor's values and, with it, the scale of its prior.

The radius of an interval after the first task is about bound * sqrt(F_0 / F). With F_0 = prior * (C / bound)^2 that is
C * sqrt(prior / F): a parameter is held to the same precision whatever range it was given.
"""

from collections.abc import Callable
from math import ceil, inf, isfinite, log2, prod
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from .parameters import Slot, not_finite
from .rules import Rules

_FAN_IN: list[tuple[type[nn.Module], str, Callable[[Any], int]]] = [
    (nn.Linear, "weight", lambda m: m.in_features),
    (nn.Bilinear, "weight", lambda m: m.in1_features * m.in2_features),
    (_ConvNd, "weight", lambda m: m.in_channels // m.groups * prod(m.kernel_size)),
    (nn.MultiheadAttention, "in_proj_weight", lambda m: m.embed_dim),
    (nn.MultiheadAttention, "q_proj_weight", lambda m: m.embed_dim),
    (nn.MultiheadAttention, "k_proj_weight", lambda m: m.kdim),
    (nn.MultiheadAttention, "v_proj_weight", lambda m: m.vdim),
]


def fan_in(module: nn.Module, attribute: str) -> int | None:
    """How many inputs each output of this weight sums over, from its module: a shape alone does not tell."""
    for kind, name, count in _FAN_IN:
        if isinstance(module, kind) and attribute == name:
            return count(module)
    return None


def bound_and_prior_scale(slot: Slot, constant: float, depth: int, rules: Rules) -> tuple[float, float]:
    """The bound b of a tensor, wide enough for the values it has, and the s for which F_0 = prior * s."""
    module, attribute = slot.owners[0]
    here = slot.local.detach().abs().max().item() if slot.local.numel() else 0.0
    largest = slot.layout.largest(here if isfinite(here) else inf)  # not NaN, which a maximum over ranks may lose
    if largest == inf:
        raise not_finite(slot)
    inputs = fan_in(module, attribute)
    is_bias = attribute.startswith("bias") or attribute.endswith("bias")
    bound = 1.0 if is_bias else 2 * max(largest, 1 / 8)
    if inputs is not None:
        bound = constant / max(1, inputs) ** 0.5
    if largest > bound * (1 - 2.0**-depth):  # given weights beyond the range: nothing is ever clipped to fit it
        bound = 2 * largest
    if rules.power_of_two:
        bound = 2.0 ** ceil(log2(bound))
    weight_inputs = fan_in(module, "weight")
    if is_bias and rules.fan_in_bias_prior and weight_inputs is not None:
        return bound, weight_inputs / bound**2
    return bound, (constant / bound) ** 2
