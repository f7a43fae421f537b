"""Registry of rules: one for each parameter of each kind of layer.

A rule adds to ``total`` the sum over samples of the squared gradient of one parameter of one layer:

    rule(total, layer, a, delta)

``a`` is the layer's input, ``delta`` the gradient of the summed log-likelihood with respect to the layer's output.
Index letters of all rules: n sample, o output channel, i input channel, l position, k kernel entry, g group.
"""

from collections.abc import Callable

from torch import Tensor, nn

from ..model.layers import full_name

Rule = Callable[[Tensor, nn.Module, Tensor, Tensor], None]
Kind = type[nn.Module] | str  # a class, or its full name where its library may be missing

_rules: dict[tuple[Kind, str], Rule] = {}
_kinds: set[Kind] = set()  # classes with a rule or with factors


def register_rule(*layers: Kind, parameter: str) -> Callable[[Rule], Rule]:
    """Decorator that registers a rule for ``parameter`` of these kinds of layer.

    Subclasses that keep ``forward`` use the rule too. Every estimate checks the rule on a few samples, and falls back
    where it disagrees with autograd.

    Args:
        layers: classes of modules, or their full names.
        parameter: the name of one of their parameters, such as ``"weight"``.

    Returns:
        A decorator that returns the function as it is. The function is called as ``rule(total, layer, a, delta)``: it
        adds to ``total``, in the parameter's shape, the sum over samples of the parameter's squared gradient. ``a`` is
        the layer's input, ``delta`` the gradient of the summed log-likelihood with respect to the layer's output; the
        first axis of both is the sample.

    Example:
        >>> import torch
        >>> from bitfreeze.fisher import explain, register_rule
        >>> class Scale(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.ones(3))
        ...     def forward(self, x):
        ...         return x * self.weight
        >>> @register_rule(Scale, parameter="weight")
        ... def scale_weight(total, layer, a, delta):
        ...     total += (a * delta).square().sum(0)
        >>> explain(Scale(), [torch.ones(4, 3)])
        {'weight': 'rule Scale.weight'}
    """

    def register(rule: Rule) -> Rule:
        for layer in layers:
            _rules[layer, parameter] = rule
            add_kind(layer)
        return rule

    return register


def find_rule(layer: nn.Module, parameter: str) -> tuple[Rule | None, str]:
    """The rule for a parameter of a layer and its name, or None and the reason."""
    for kind in type(layer).__mro__:
        rule = _rules.get((kind, parameter)) or _rules.get((full_name(kind), parameter))
        if rule is None:
            continue
        if reason := why_not_as(layer, kind, "rule"):
            return None, reason
        return rule, f"rule {kind.__name__}.{parameter}"
    return None, f"no rule for {parameter} of {type(layer).__name__}"


# A subclass of a convolution may pad its input in a forward of its own and then convolve. The taps find its call of
# torch's function, so what is registered for the convolution holds for that call.
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def add_kind(kind: Kind) -> None:
    _kinds.add(kind)


def why_not_as(layer: nn.Module, kind: type[nn.Module], what: str) -> str:
    """Why what is registered for ``kind`` cannot be used for a layer of a subclass, or ''."""
    if type(layer).forward is getattr(kind, "forward", None) or kind in CONVOLUTIONS:
        return ""
    return f"{type(layer).__name__} overrides forward, so the {what} of {kind.__name__} is not used"


def convolves_inside(layer: nn.Module) -> bool:
    """Whether a layer is a convolution with a forward of its own, for which nothing is registered."""
    kind = next((kind for kind in type(layer).__mro__ if kind in _kinds or full_name(kind) in _kinds), None)
    return kind in CONVOLUTIONS and type(layer).forward is not getattr(kind, "forward", None)
