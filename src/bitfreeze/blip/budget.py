"""The prior at which the first task freezes a given share of the bits in use."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from .._messages import warn_caller
from ..bits import prior_for_budget
from ..model.ranks import Ranks
from .tensor_state import TensorState


def prior_of_first_task(
    states: Mapping[str, TensorState], fisher: Mapping[str, Tensor], budget: float, depth: int, gain: str, ranks: Ranks
) -> float:
    """The prior at which the first task, whose Fisher is given, freezes at most the budget."""
    mine = [(fisher[name], state.prior_scale) for name, state in states.items() if state.layout.counts_here(ranks)]
    scaled = in_one_scale(mine)
    scaled = scaled[scaled > 0]
    if not sum(ranks.gather(len(scaled))):
        raise ValueError(
            "gradients of the log-likelihood must not all be 0; the model may be saturated (use labels='exact', or "
            "give a prior), or its output may not depend on the watched part"
        )
    prior, share = prior_for_budget(scaled, budget, depth, gain, ranks.gather)
    if abs(share - budget) > 0.05 * budget:
        warn_caller(
            f"the budget of {budget:.1%} of the bits cannot be met and {share:.1%} are frozen; choose another budget, "
            "or a prior",
        )
    return prior


def in_one_scale(fisher: Iterable[tuple[Tensor, float]]) -> Tensor:
    """All entries in one tensor, each divided by the scale of its tensor's prior."""
    # float64, because the smallest entries divided by a scale would vanish in float32
    parts = [values.double().flatten() / scale for values, scale in fisher]
    return torch.cat([part.to(parts[0].device) for part in parts]) if parts else torch.empty(0, dtype=torch.float64)
