"""Bound of each tensor's values, and the scale of its prior.

The radius of an interval after the first task is about bound * sqrt(F_0 / F). With F_0 = prior * (C / bound)^2 that is
C * sqrt(prior / F), so a parameter is held to the same precision whatever its bound.
"""

from math import ceil, inf, isfinite, log2

from ..model.layers import fan_in
from ..model.parameters import Slot, not_finite
from .rules import WeightRules


def bound_of(slot: Slot, constant: float, depth: int) -> float:
    """Bound of a tensor: C / sqrt(fan_in) for the weights of a layer, and wide enough for the values there are."""
    module, attribute = slot.owners[0]
    here = slot.local.detach().abs().max().item() if slot.local.numel() else 0.0
    largest = slot.layout.largest(here if isfinite(here) else inf)  # a maximum over ranks may lose a NaN, but not inf
    if largest == inf:
        raise not_finite(slot)
    inputs = fan_in(module, attribute)
    bound = 1.0 if _is_bias(attribute) else 2 * max(largest, 1 / 8)
    if inputs is not None:
        bound = constant / max(1, inputs) ** 0.5
    return 2 * largest if largest > bound * (1 - 2.0**-depth) else bound


def bound_and_prior_scale(slot: Slot, constant: float, depth: int, rules: WeightRules) -> tuple[float, float]:
    """Bound b of a tensor, and scale s of its prior: F_0 = prior * s. Values within the bound are never clipped."""
    module, attribute = slot.owners[0]
    bound = bound_of(slot, constant, depth)
    if rules.power_of_two:
        bound = 2.0 ** ceil(log2(bound))
    weight_inputs = fan_in(module, "weight")
    if _is_bias(attribute) and rules.fan_in_bias_prior and weight_inputs is not None:
        return bound, weight_inputs / bound**2
    return bound, (constant / bound) ** 2


def _is_bias(attribute: str) -> bool:
    return attribute.startswith("bias") or attribute.endswith("bias")
