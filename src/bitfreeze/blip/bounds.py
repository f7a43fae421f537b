"""Bound of each tensor's values, and the scale of its prior.

The radius of an interval after the first task is about bound * sqrt(F_0 / F). With F_0 = prior * (C / bound)^2 that is
C * sqrt(prior / F), so a parameter is held to the same precision whatever its bound.
"""

from math import ceil, inf, isfinite, log2

from ..model.layers import fan_in
from ..model.parameters import Slot, not_finite
from .rules import Rules


def bound_and_prior_scale(slot: Slot, constant: float, depth: int, rules: Rules) -> tuple[float, float]:
    """Bound b of a tensor, wide enough for its values, and scale s of its prior: F_0 = prior * s."""
    module, attribute = slot.owners[0]
    here = slot.local.detach().abs().max().item() if slot.local.numel() else 0.0
    largest = slot.layout.largest(here if isfinite(here) else inf)  # a maximum over ranks may lose a NaN, but not inf
    if largest == inf:
        raise not_finite(slot)
    inputs = fan_in(module, attribute)
    is_bias = attribute.startswith("bias") or attribute.endswith("bias")
    bound = 1.0 if is_bias else 2 * max(largest, 1 / 8)
    if inputs is not None:
        bound = constant / max(1, inputs) ** 0.5
    if largest > bound * (1 - 2.0**-depth):  # given weights beyond the bound are never clipped
        bound = 2 * largest
    if rules.power_of_two:
        bound = 2.0 ** ceil(log2(bound))
    weight_inputs = fan_in(module, "weight")
    if is_bias and rules.fan_in_bias_prior and weight_inputs is not None:
        return bound, weight_inputs / bound**2
    return bound, (constant / bound) ** 2
