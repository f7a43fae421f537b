"""Where watched parameters are: finite, and inside their intervals, or what to do about it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .parameters import require_finite
from .rules import Rules
from .tensor_state import TensorState

States = Mapping[str, TensorState]
Values = dict[str, tuple[Tensor, Tensor | None]]  # of each tensor its entries, and what rounding took from them


def require_healthy(states: States) -> None:
    """Every step since the last task has left finite entries, also where the clamp has hidden that."""
    for state in states.values():
        require_finite(state.slot)
    sick = [name for name, state in states.items() if state.take_sickness()]
    if sick:
        raise ValueError(
            f"'{sick[0]}'{f' and {len(sick) - 1} more' if len(sick) > 1 else ''} has had NaN or infinite entries "
            "after a step, which the clamp made finite: restore the last good weights (once that is done, consolidate "
            "again), and look at the learning rate and the data"
        )


def require_inside(states: States, rules: Rules, outside: str, likely_cause: str) -> Values:
    """Every parameter must be in its interval. Those that were mended are returned as they were before."""
    if outside not in ("raise", "mend"):
        raise ValueError(f"outside={outside!r} is not known: use 'raise' or 'mend'")
    if _may_stray(rules):
        outside = "mend"
    found = {name: state.outside() for name, state in states.items()}
    beyond = {name: worst for name, (count, worst) in found.items() if count}
    if beyond and outside == "raise":
        name = max(beyond, key=lambda n: beyond[n])
        raise RuntimeError(
            f"{found[name][0]} entries of '{name}' lie outside their interval, by up to {beyond[name]:.3g}: "
            f"{likely_cause}; or pass outside='mend' to clamp them now"
        )
    before: Values = {}
    for name in beyond:
        state = states[name]
        before[name] = state.slot.local.detach().clone(), state.current_residual()
        state.after_step_()
    return before


@torch.no_grad()
def put_back(states: States, values: Values) -> None:
    for name, (value, residual) in values.items():
        state = states[name]
        state.slot.local.copy_(value)
        state.residual, state.rounded_version = residual, state.slot.local._version


def require_own_weights(states: States, rules: Rules) -> None:
    """The first step after a state was loaded would clip weights that do not belong to it."""
    if _may_stray(rules):
        return
    for name, state in states.items():
        if state.bits is not None and state.slot.find() is not None and state.layout.largest(state.outside()[0]):
            raise RuntimeError(
                f"'{name}' lies outside the intervals of the state that was loaded: load the weights that the "
                "model had then too, or call blip.clamp_() if it is meant to be clipped"
            )


def _may_stray(rules: Rules) -> bool:
    """Algorithm 1 itself leaves parameters outside until the next clip."""
    return rules.centre == "rounded_before"
