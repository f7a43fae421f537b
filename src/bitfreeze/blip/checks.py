"""Checks: settings that make sense, saved states that belong to the model, parameters inside their intervals."""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from numbers import Real
from typing import Any

import torch

from .._messages import warn_caller
from ..bits import MAX_DEPTH
from ..model.parameters import require_finite
from ..model.ranks import Ranks
from .rules import Rules, WeightRules, require_rules
from .tensor_state import TensorState
from .watched import WatchedTensor

MAX_BOUND = 1e6
PERMISSIVE = 1.0  # nats a sample: a tolerance above it was likely meant in percent

States = Mapping[str, TensorState]


class SickWeights(ValueError):
    """Weights were not finite after a step."""


class OtherWeights(RuntimeError):
    """The weights are not those that the last task left."""


def require_settings(
    rules: Rules, bits: int, bound: float, *, tolerance: float | None, budget: float | None, prior: float | None
) -> None:
    """Refuse settings out of range, and settings that belong to other rules."""
    whole = hasattr(bits, "__index__") and not isinstance(bits, bool)
    if not (whole and 1 <= bits <= MAX_DEPTH):
        raise ValueError(f"bits must be a whole number from 1 to {MAX_DEPTH}, got {bits!r}")
    _require_number("bound", bound, "above 0", lambda c: c > 0)
    _require_number("bound", bound, f"at most {MAX_BOUND:g}", lambda c: c <= MAX_BOUND)
    if budget is not None:
        _require_number("budget", budget, "a share of the bits, above 0 and below 1", lambda b: 0 < b < 1)
    if prior is not None:
        _require_number("prior", prior, "above 0 and finite", lambda f: 0 < f < inf)
    by_weight = isinstance(require_rules(rules), WeightRules)
    given = {"tolerance": tolerance} if by_weight else {"budget": budget, "prior": prior}
    for name, value in given.items():
        if value is not None:
            instead = "budget, or Rules.directions()" if by_weight else "tolerance, or Rules.strict()"
            raise ValueError(f"{name} must be left out with these rules, got {value!r}; use {instead}")
    if tolerance is not None:
        require_tolerance(tolerance)


def require_tolerance(tolerance: float) -> None:
    hint = "; the default, 0.05, lets a network become about 5 % less sure of its answers"
    _require_number("tolerance", tolerance, "above 0, in nats a sample", lambda t: 0 < t < inf, hint)
    if tolerance > PERMISSIVE:
        warn_caller(f"a tolerance of {tolerance:g} nats a sample is large, and no percentage{hint}")


def _require_number(name: str, value: Any, what: str, fits: Callable[[Any], bool], hint: str = "") -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, {what}, got {value!r}{hint}")
    if not fits(value):
        raise ValueError(f"{name} must be {what}, got {value!r}{hint}")


def require_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def renamed(names: Iterable[str], rename: Mapping[str, str] | Callable[[str], str] | None) -> dict[str, str]:
    if rename is None:
        return {name: name for name in names}
    mapping = rename.get if isinstance(rename, Mapping) else lambda name, _: rename(name)
    new_names = {name: mapping(name, name) for name in names}
    if len(set(new_names.values())) < len(new_names):
        raise ValueError("rename must give each saved tensor a name of its own, got one name for two tensors")
    return new_names


def require_equal_on(ranks: Ranks, states: Iterable[WatchedTensor]) -> None:
    """Refuse whole parameters that differ between ranks, because frozen bits could not fit both."""
    whole = [state.slot for state in states if not state.layout.sharded]
    if ranks.count == 1 or not whole:
        return
    everywhere = ranks.gather([_digest(slot.local.detach()) for slot in whole])
    for index, digests in enumerate(everywhere):
        for slot, digest, first in zip(whole, digests, everywhere[0], strict=True):
            if digest != first:
                raise ValueError(
                    f"'{slot.name}' must have the same values on all ranks, got others on rank {index} than on rank 0; "
                    "train with DistributedDataParallel, or pass distributed=False if each rank trains its own model"
                )


def _digest(values: torch.Tensor) -> int:
    whole_numbers = torch.int32 if values.dtype == torch.float32 else torch.int64
    return int(values.view(whole_numbers).sum(dtype=torch.int64))


def require_healthy(states: Mapping[str, WatchedTensor]) -> None:
    """Refuse parameters that are not finite, or were not after a step since the last task and then clamped."""
    sick = [name for name, state in states.items() if state.take_sickness()]
    try:
        for state in states.values():
            require_finite(state.slot)
    except ValueError as error:
        raise SickWeights(str(error)) from None
    if sick:
        raise SickWeights(
            f"'{sick[0]}'{f' and {len(sick) - 1} more' if len(sick) > 1 else ''} has had NaN or infinite entries "
            "after a step, which the clamp made finite; restore the last good weights, consolidate again, and look at "
            "the learning rate and the data"
        )


def require_outside(outside: str) -> None:
    if outside not in ("raise", "mend"):
        raise ValueError(f"outside must be 'raise' or 'mend', got {outside!r}")


def require_inside(states: States, rules: WeightRules, outside: str, likely_cause: str) -> None:
    """Refuse or mend parameters outside their intervals."""
    require_outside(outside)
    if rules.centre_rule.may_exclude:
        outside = "mend"
    found = {name: state.outside() for name, state in states.items()}
    beyond = {name: worst for name, (count, worst) in found.items() if count}
    if beyond and outside == "raise":
        name = max(beyond, key=lambda n: beyond[n])
        raise RuntimeError(
            f"{found[name][0]} entries of '{name}' lie outside their interval, by up to {beyond[name]:.3g}: "
            f"{likely_cause}; or pass outside='mend' to clamp them now"
        )
    for name in beyond:
        states[name].hold_()


def require_own_weights(states: States, rules: WeightRules) -> None:
    """Refuse weights that do not belong to the state that was loaded: the next step would clip them."""
    if rules.centre_rule.may_exclude:
        return
    for name, state in states.items():
        if state.bits is not None and state.slot.find() is not None and state.layout.largest(state.outside()[0]):
            raise OtherWeights(
                f"'{name}' must lie inside the intervals that the last task left, got entries outside; restore weights "
                "before you consolidate, load those that belong to a loaded state, or call blip.clamp_() to clip them"
            )
