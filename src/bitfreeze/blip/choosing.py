"""Which rules a BLIP has by default, and which guards rules ask for."""

from torch import nn

from ..model.parameters import Watch
from .directions import Directions
from .guards import Guard
from .intervals import Intervals
from .levels import Levels
from .rules import DirectionRules, Rules, WeightRules

TOLERANCE = 0.05  # nats a sample
BUDGET = 0.1  # of the bits in use


def default_rules(budget: float | None, prior: float | None) -> Rules:
    """Rules of a BLIP that is given none: by weight where a setting of those rules is given."""
    return Rules.directions() if budget is None and prior is None else Rules.strict()


def make_guards(
    model: nn.Module,
    watch: Watch,
    rules: WeightRules | DirectionRules,
    *,
    depth: int,
    bound: float,
    tolerance: float | None,
    budget: float | None,
    prior: float | None,
) -> tuple[Intervals | Directions, list[Guard]]:
    """The guard that knows all watched tensors, and all guards in the order in which they hold."""
    # plain numbers, because a state must load under weights_only=True
    if isinstance(rules, DirectionRules):
        tolerance = TOLERANCE if tolerance is None else float(tolerance)
        directions = Directions(model, watch, rules, depth=depth, bound=bound, tolerance=tolerance)
        return directions, [directions]
    budget = BUDGET if budget is None else float(budget)
    prior = None if prior is None else float(prior)
    intervals = Intervals(model, watch, rules, depth=depth, bound=bound, budget=budget, prior=prior)
    levels: list[Guard] = [Levels(intervals)] if rules.levels else []
    return intervals, [*levels, intervals]
