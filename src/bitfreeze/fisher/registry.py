"""A rule for each parameter of each kind of layer.

A rule adds to ``total`` the sum over samples of the squared gradient of one parameter of one layer:

    rule(total, layer, a, delta)

``a`` is the layer's input, ``delta`` the gradient of the summed log-likelihood with respect to its output. Index
letters, here and in the rules: n sample, o output channel, i input channel, l position, k kernel entry, g group.
"""

from collections.abc import Callable

from torch import Tensor, nn

Rule = Callable[[Tensor, nn.Module, Tensor, Tensor], None]

_rules: dict[tuple[type[nn.Module], str], Rule] = {}


def register_rule(*layers: type[nn.Module], parameter: str) -> Callable[[Rule], Rule]:
    """Use the decorated function for ``parameter`` of these kinds of layer, and of subclasses that keep ``forward``."""

    def register(rule: Rule) -> Rule:
        for layer in layers:
            _rules[layer, parameter] = rule
        return rule

    return register


def find_rule(layer: nn.Module, parameter: str) -> tuple[Rule | None, str]:
    """The rule for a parameter of a layer, and in words what it is or why there is none."""
    for kind in type(layer).__mro__:
        rule = _rules.get((kind, parameter))
        if rule is None:
            continue
        if type(layer).forward is not getattr(kind, "forward", None):
            return None, f"{type(layer).__name__} has a forward of its own, so the rule of {kind.__name__} is not used"
        return rule, f"rule {kind.__name__}.{parameter}"
    return None, f"no rule for {parameter} of {type(layer).__name__}"
