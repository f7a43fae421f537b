"""Checks of a saved state before it is believed: every key is known, every value can be, and all of them fit together.

A digest (digest.py) finds damage. The checks here also refuse a state that was edited or made by hand, and states
without a digest. They need no model; whether a state belongs to the model is checked where it is taken up.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..model.shards import is_sharded, layout_of
from .digest import KEY, require_digest
from .rules import DirectionRules, WeightRules
from .turning import Turning, by_rows
from .widening import WIDEST

STATE_FORMAT = 1
COMMON = ("format", "settings", "tasks", "prior", "tensors", "absent")
OF_DIRECTIONS = ("positions", "directions", "paces", "unread", "unread_steps", "width", "stepped", "clamped")
FLOATS = (torch.float32, torch.float64)
NEARLY_ORTHONORMAL = 0.02  # directions may have been through half precision


class Damaged(ValueError):
    """A saved state holds what no BLIP can have saved."""

    def __init__(self, what: str, must_be: str, got: Any) -> None:
        super().__init__(f"the state is damaged: {what} must be {must_be}, got {got}; use another copy of the state")


def require_format(state: Any) -> None:
    """Refuse what is no state of a BLIP."""
    known = isinstance(state, Mapping) and type(state.get("format")) is int and state["format"] == STATE_FORMAT
    if not known or any(key not in state for key in COMMON):
        raise ValueError(
            "state must be a state dict of a BLIP, got something else; pass what blip.state_dict() returned"
        )
    _table("'settings'", state["settings"])


def require_valid(state: Mapping[str, Any], depth: int, rules: WeightRules | DirectionRules) -> None:
    """Refuse a state that holds what no BLIP with this depth and these rules can have saved.

    Raises:
        ValueError: names the value, what it must be, and what it is.
    """
    along = isinstance(rules, DirectionRules)
    own = OF_DIRECTIONS if isinstance(rules, DirectionRules) else ("levels",) if rules.levels else ()
    _require_keys("its keys", state, required=(*COMMON, *own), optional=(KEY,))
    tasks = _whole("'tasks'", state["tasks"])
    if state["prior"] is not None or tasks:
        _number("'prior'", state["prior"], above=0.0)
    held = {**_table("'tensors'", state["tensors"]), **_table("'absent'", state["absent"])}
    for name, saved in held.items():
        _require_tensor_state(name, _table(f"'{name}'", saved), tasks, depth, rules)
    if sum(saved["tasks"] for saved in held.values()) < tasks:
        counted = sum(saved["tasks"] for saved in held.values())
        raise Damaged("each task", "counted by a tensor that it ended", f"{tasks} tasks and {counted} ends of tensors")
    if along:
        _require_directions(state, held)
    elif own:
        _require_levels(state["levels"], held, tasks)
    require_digest(state)  # last, because the checks above name what they find


def _require_tensor_state(
    name: str, saved: Mapping[str, Any], most: int, depth: int, rules: WeightRules | DirectionRules
) -> None:
    along = isinstance(rules, DirectionRules)
    numbers = ("bound", "tasks") if along else ("bound", "prior_scale", "tasks")
    tensors = ("centre", "fisher") if along else ("bits", "centre", "fisher", "began", "residual")
    _require_keys(f"the keys of '{name}'", saved, required=numbers, optional=tensors)
    tasks = _whole(f"'tasks' of '{name}'", saved["tasks"], most=most)
    for key in numbers[:-1]:
        _number(f"'{key}' of '{name}'", saved[key], above=0.0)
    needed = () if not tasks else ("centre",) if along else ("bits", "centre", "fisher")
    allowed = tensors if tasks else ("residual",)
    missing = [key for key in needed if key not in saved]
    early = [key for key in tensors if key in saved and key not in allowed]
    if missing or early:
        has = "no" if missing else "a"
        raise Damaged(f"'{name}'", f"as after {tasks} tasks", f"{has} '{(missing or early)[0]}'")
    shapes = [saved[key].shape for key in tensors if isinstance(saved.get(key), Tensor)]
    for key in tensors:
        if key in saved:
            what = f"'{key}' of '{name}'"
            kind = _kind_of(key, depth, along, saved["bound"], tasks)
            _require_tensor(what, saved[key], *kind, shape=shapes[0] if shapes else None)


Kind = tuple[tuple[torch.dtype, ...], float, float, bool]  # dtypes, least, most, whether least itself is allowed


def _kind_of(key: str, depth: int, along: bool, bound: float, tasks: int) -> Kind:
    if key == "fisher":
        # along directions a free entry has none; by weight the prior is part of it
        return ((*FLOATS, torch.bfloat16), 0.0, inf, True) if along else ((torch.float32,), 0.0, inf, False)
    if key == "began":
        return (torch.int16,), 0, tasks, True
    if key == "bits":
        return (torch.uint8,), 0, depth, True
    if key == "centre" and not along:
        return (torch.int32,), -(2**depth), 2**depth, True
    if key == "residual":  # half a step of the grid, and one at the ends of the range
        return FLOATS, -2 * bound * 2.0**-depth, 2 * bound * 2.0**-depth, True
    return FLOATS, -inf, inf, True


def _require_directions(state: Mapping[str, Any], held: Mapping[str, Mapping[str, Any]]) -> None:
    _number("'positions'", state["positions"], above=0.0)
    turnings = _table("'directions'", state["directions"])
    for name, saved in turnings.items():
        if name not in held or not held[name]["tasks"]:
            raise Damaged("'directions'", "those of tensors that have ended a task", f"'{name}'")
        _require_turning(name, _table(f"the directions of '{name}'", saved), held[name]["centre"])
    for name, saved in held.items():
        if saved["tasks"] and "fisher" not in saved and not _is_in_layer(name, saved["centre"], turnings):
            raise Damaged(f"'{name}'", "held by a Fisher or along directions", "neither")
    for name, pace in _table("'paces'", state["paces"]).items():
        _require_among("'paces'", name, turnings)
        if not isinstance(pace, list | tuple) or len(pace) != 3:
            raise Damaged(f"the pace of '{name}'", "three numbers", pace)
        _whole(f"the pace of '{name}'", pace[0], least=1)
        _whole(f"the steps of '{name}' since its last clamp", pace[1])
        if _number(f"the cost of '{name}'", pace[2], above=-inf) < 0:
            raise Damaged(f"the cost of '{name}'", "at least 0", pace[2])
    for name, costs in _table("'unread'", state["unread"]).items():
        _require_among("'unread'", name, turnings)
        if not isinstance(costs, list | tuple) or len(costs) != 2:
            raise Damaged(f"the unread costs of '{name}'", "two numbers", costs)
        for cost in costs:
            _number(f"an unread cost of '{name}'", cost, above=-inf)
    _whole("'unread_steps'", state["unread_steps"])
    width = state["width"]
    if not isinstance(width, list | tuple) or len(width) != 2:
        raise Damaged("'width'", "two numbers", width)
    if not 1 <= _number("'width'", width[0], above=0.0) <= WIDEST:
        raise Damaged("'width'", f"from 1 to {WIDEST:g}", width[0])
    _whole("the steps of 'width'", width[1])
    for key in ("stepped", "clamped"):
        if not isinstance(state[key], list | tuple):
            raise Damaged(f"'{key}'", "a list of names", state[key])
        for name in state[key]:
            _require_among(f"'{key}'", name, turnings)


def _require_turning(name: str, saved: Mapping[str, Any], centre: Tensor) -> None:
    required, optional = ("positions", *Turning.TENSORS), ("by_output", "inputs_first")
    _require_keys(f"the keys of the directions of '{name}'", saved, required=required, optional=optional)
    _whole(f"'positions' of '{name}'", saved["positions"], least=1)
    if not isinstance(saved.get("inputs_first", False), bool):
        raise Damaged(f"'inputs_first' of '{name}'", "true or false", repr(saved["inputs_first"]))
    centre = by_rows(centre, saved.get("inputs_first", False))
    for key in Turning.TENSORS:
        least = -inf if key in ("inputs", "outputs") else 0.0
        _require_tensor(f"'{key}' of '{name}'", saved[key], FLOATS, least, inf, True)
    inputs, outputs = saved["inputs"], saved["outputs"]
    if inputs.ndim == outputs.ndim == 3:
        (groups, wide, j), (_, tall, k) = inputs.shape, outputs.shape
        expected = [(groups, wide, j), (groups, tall, k), (groups, j), (groups, k), (groups, k, j)]
        fits = [tuple(saved[key].shape) for key in Turning.TENSORS] == expected
        if "by_output" in saved:
            what = f"'by_output' of '{name}'"
            shape = torch.Size((groups, tall, j))
            _require_tensor(what, saved["by_output"], (*FLOATS, torch.bfloat16), 0.0, inf, True, shape=shape)
        row = centre[0].numel() if centre.ndim and len(centre) else 0
        if not fits or groups * tall != len(centre) or wide - row not in (0, 1):
            fits = False
    else:
        fits = False
    if not fits:
        shapes = {key: list(saved[key].shape) for key in Turning.TENSORS}
        raise Damaged(f"the directions of '{name}'", f"those of a weight of shape {list(centre.shape)}", shapes)
    for key in ("inputs", "outputs"):
        columns = saved[key]
        products = columns.mT @ columns
        off = (products - torch.eye(len(products[0]), dtype=products.dtype, device=products.device)).abs()
        if off.numel() and not off.max() < NEARLY_ORTHONORMAL:
            raise Damaged(f"'{key}' of '{name}'", "orthonormal", f"columns that are off by {off.max():.2g}")


def _is_in_layer(name: str, centre: Tensor, turnings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether directions of a layer hold all of a tensor: of its weight, or of its bias, which has the same module."""
    module = name.rpartition(".")[0]
    layers = [name] if name in turnings else [n for n in turnings if n.rpartition(".")[0] == module]
    return any(
        turnings[layer]["inputs"].shape[1] == turnings[layer]["inputs"].shape[2]
        and (
            "by_output" in turnings[layer] or turnings[layer]["outputs"].shape[1] == turnings[layer]["outputs"].shape[2]
        )
        and turnings[layer]["outputs"].shape[:2].numel()
        == len(by_rows(centre, turnings[layer].get("inputs_first", False)))
        for layer in layers
    )


def _require_levels(levels: Any, held: Mapping[str, Any], most: int) -> None:
    kinds = ("means", "levels", "radii")
    _require_keys("the keys of 'levels'", _table("'levels'", levels), required=("tasks", *kinds))
    _whole("'tasks' of 'levels'", levels["tasks"], most=most)
    means = _table("'means' of 'levels'", levels["means"])
    for kind in kinds:
        if set(_table(f"'{kind}' of 'levels'", levels[kind])) != set(means):
            raise Damaged(f"'{kind}' of 'levels'", "of the same layers as 'means'", sorted(levels[kind]))
        for name, tensor in levels[kind].items():
            _require_among(f"'{kind}' of 'levels'", name, held)
            _require_tensor(f"'{kind}' of '{name}'", tensor, FLOATS, 0.0 if kind == "radii" else -inf, inf, True)
            centre = held[name].get("centre")
            if not isinstance(centre, Tensor) or centre.ndim == 0:
                raise Damaged(f"'{name}'", "a weight that has ended a task", "'levels' of it")
            size = centre[0].numel() if kind == "means" else len(centre)
            least = size if kind == "means" else _first_rows(held[name])  # rows that were added may have none yet
            if tensor.ndim != 1 or not least <= len(tensor) <= size:
                raise Damaged(f"'{kind}' of '{name}'", f"{size} numbers", list(tensor.shape))


def _first_rows(saved: Mapping[str, Any]) -> int:
    """Number of rows that a tensor had when its first task ended."""
    began = saved.get("began")
    return len(saved["centre"]) if began is None else int((began.flatten(1)[:, 0] == 0).sum())


# values


def _require_keys(
    what: str, saved: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    missing = [key for key in required if key not in saved]
    unknown = [key for key in saved if key not in required and key not in optional]
    if missing or unknown:
        got = [f"no '{key}'" for key in missing] + [repr(key) for key in unknown]
        raise Damaged(what, "those that a BLIP with these rules saves", " and ".join(got))


def _require_among(what: str, name: Any, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise Damaged(what, "of tensors that are in the state", repr(name))


def _table(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Damaged(what, "a table", f"a {type(value).__name__}")
    return value


def _whole(what: str, value: Any, least: int = 0, most: float = inf) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        top = "" if most == inf else f" and at most {most}"
        raise Damaged(what, f"a whole number of at least {least}{top}", repr(value))
    return value


def _number(what: str, value: Any, above: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not above < value < inf:
        raise Damaged(what, "a finite number" + ("" if above == -inf else f" above {above:g}"), repr(value))
    return value


def _require_tensor(
    what: str,
    value: Any,
    dtypes: tuple[torch.dtype, ...],
    least: float,
    most: float,
    least_allowed: bool,
    shape: torch.Size | None = None,
) -> None:
    if not isinstance(value, Tensor) or value.dtype not in dtypes:
        got = f"{value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise Damaged(what, f"a tensor of {' or '.join(str(dtype) for dtype in dtypes)}", got)
    if shape is not None and value.shape != shape:
        raise Damaged(what, f"of shape {list(shape)}", list(value.shape))
    local = (layout_of(value).local(value) if is_sharded(value) else value).detach()
    if not local.numel() or local.is_meta:
        return
    low, high = (float(end) for end in local.aminmax())
    inside = (low >= least if least_allowed else low > least) and high <= most and -inf < low and high < inf
    if not inside:  # NaN compares as false
        start = "finite" if least == -inf else f"{'at least' if least_allowed else 'above'} {least:g}"
        top = "" if most == inf else f" and at most {most:g}"
        finite = "" if least == -inf or top else " and finite"
        raise Damaged(what, f"{start}{top}{finite}", f"values from {low:.3g} to {high:.3g}")
