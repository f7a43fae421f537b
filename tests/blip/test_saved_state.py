"""A saved state that cannot be is refused by name, and a flip of any bit of it."""

import copy
import io
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bitfreeze import BLIP, Rules
from bitfreeze.blip.rules import WeightRules
from support.protected_nets import GUARDS, Net, assert_same, make_task, snapshot, train_sgd

KINDS: dict[str, dict[str, Any]] = {
    **GUARDS,
    "levels": {"rules": WeightRules(centre="following", levels=True), "budget": 0.3},
    "straight_through": {"rules": Rules.text(straight_through=True), "budget": 0.3},
    "few directions": {"rules": Rules.directions(strongest=3), "tolerance": 0.02},
}
WEIGHT, BIAS = "backbone.0.weight", "backbone.0.bias"


def trained(kind: str) -> tuple[Net, BLIP]:
    model = Net()
    blip = BLIP(model, **KINDS[kind])
    blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1)
    return model, blip


def saved_by(kind: str) -> dict[str, Any]:
    return trained(kind)[1].state_dict()


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def all_tensors(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Tensor]]:
    if isinstance(value, Tensor):
        return [(path, value)]
    found = value.items() if isinstance(value, dict) else ()
    return [each for key, item in found for each in all_tensors(item, (*path, key))]


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def spoil(state: dict[str, Any]) -> None:
        place = state
        for key in path[:-1]:
            place = place[key]
        if callable(value):
            place[path[-1]] = value(place[path[-1]])
        else:
            place[path[-1]] = value

    return spoil


def first_entry(number: float) -> Callable[[Tensor], Tensor]:
    def changed(tensor: Tensor) -> Tensor:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        tensor.view(-1)[0] = number
        return tensor

    return changed


nan, inf = float("nan"), float("inf")
EVERY = {
    "tasks is text": (put("tasks", value="1"), "'tasks' must be a whole number"),
    "half a task": (put("tasks", value=1.5), "'tasks' must be a whole number"),
    "tasks below 0": (put("tasks", value=-1), "'tasks' must be a whole number"),
    "a task too many": (put("tasks", value=100), "each task must be counted"),
    "a task less": (put("tasks", value=0), "'tasks' of 'backbone.0.weight' must be .* at most 0, got 1"),
    "no tensors": (put("tensors", value={}), "each task must be counted .* got 1 tasks and 0 ends|must be those of"),
    "tensors is a list": (put("tensors", value=[]), "'tensors' must be a table"),
    "prior NaN": (put("prior", value=nan), "'prior' must be a finite number above 0, got nan"),
    "prior 0": (put("prior", value=0.0), "'prior' must be a finite number above 0, got 0.0"),
    "no prior": (put("prior", value=None), "'prior' must be a finite number above 0, got None"),
    "bound NaN": (put("tensors", WEIGHT, "bound", value=nan), "'bound' of 'backbone.0.weight' must be .* got nan"),
    "bound 0": (put("tensors", WEIGHT, "bound", value=0), "'bound' of 'backbone.0.weight' must be .* got 0"),
    "a key too many": (put("extra", value=1), "its keys must be those that a BLIP with these rules saves, got 'extra'"),
    "a key of a tensor": (put("tensors", WEIGHT, "extra", value=1), "keys of 'backbone.0.weight' must be .*'extra'"),
    "a tensor's tasks": (put("tensors", WEIGHT, "tasks", value=True), "'tasks' of 'backbone.0.weight' must be"),
    "no tensors in a tensor": (put("tensors", WEIGHT, value={"bound": 1.0, "tasks": 1}), "got no '"),
}
BY_WEIGHT = {
    "Fisher NaN": (put("tensors", WEIGHT, "fisher", value=first_entry(nan)), "'fisher' of .* above 0 and finite"),
    "Fisher infinite": (put("tensors", WEIGHT, "fisher", value=first_entry(inf)), "'fisher' of .* above 0 and finite"),
    "Fisher 0": (put("tensors", WEIGHT, "fisher", value=first_entry(0)), "'fisher' of .* above 0 and finite"),
    "bits": (put("tensors", WEIGHT, "bits", value=first_entry(21)), "'bits' of .* at least 0 and at most 20, got"),
    "centre": (put("tensors", WEIGHT, "centre", value=first_entry(2**20 + 1)), "'centre' of .* at most 1.04858e"),
    "dtype": (put("tensors", WEIGHT, "centre", value=lambda t: t.long()), "'centre' of .* must be a tensor of torch.i"),
    "shape": (put("tensors", WEIGHT, "bits", value=lambda t: t[:3]), r"'bits' of .* shape|must be of shape"),
    "a number for a tensor": (put("tensors", WEIGHT, "bits", value=3), "'bits' of .* got a int"),
}
ALONG = {
    "Fisher NaN": (put("directions", WEIGHT, "fisher", value=first_entry(nan)), "'fisher' of .* at least 0 and finite"),
    "Fisher below 0": (put("directions", WEIGHT, "fisher", value=first_entry(-1)), "'fisher' of .* at least 0"),
    "not orthonormal": (put("directions", WEIGHT, "inputs", value=first_entry(9)), "'inputs' of .* orthonormal"),
    "one direction less": (put("directions", WEIGHT, "inputs", value=lambda t: t[..., 1:]), "those of a weight of"),
    "no directions": (put("directions", value={}), "held by a Fisher or along directions, got neither"),
    "of another layer": (put("directions", "x", value={}), "those of tensors that have ended a task, got 'x'"),
    "no positions": (put("directions", WEIGHT, "positions", value=0), "'positions' of .* at least 1, got 0"),
    "positions": (put("positions", value=-1.0), "'positions' must be a finite number above 0"),
    "width": (put("width", value=[0.5, 0]), "'width' must be from 1 to 100, got 0.5"),
    "width NaN": (put("width", value=[nan, 0]), "'width' must be a finite number"),
    "pace": (put("paces", WEIGHT, value=[0, 0, 0.0]), "the pace of .* at least 1, got 0"),
    "unread costs": (put("unread", WEIGHT, value=[0.0]), "the unread costs of .* must be two numbers"),
    "an unread cost": (put("unread", WEIGHT, value=[0.0, inf]), "an unread cost of .* finite number, got inf"),
    "unread of nothing": (put("unread", "other", value=[0.0, 0.0]), "'unread'"),
    "unread steps": (put("unread_steps", value=-1), "'unread_steps' must be .*, got -1"),
    "cost": (put("paces", WEIGHT, value=[1, 0, nan]), "the cost of .* must be a finite number, got nan"),
    "stepped": (put("stepped", value=["x"]), "'stepped' must be of tensors that are in the state, got 'x'"),
    "centre": (put("tensors", WEIGHT, "centre", value=first_entry(inf)), "'centre' of .* must be finite"),
}
LEVELS = {
    "means NaN": (put("levels", "means", WEIGHT, value=first_entry(nan)), "'means' of .* must be finite"),
    "radius below 0": (put("levels", "radii", WEIGHT, value=first_entry(-1)), "'radii' of .* must be at least 0"),
    "a shape": (put("levels", "means", WEIGHT, value=lambda t: t[1:]), "'means' of .* must be 6 numbers"),
    "a layer less": (put("levels", "means", value={}), "'means' of 'levels'|of the same layers"),
    "tasks": (put("levels", "tasks", value=7), "'tasks' of 'levels' must be a whole number"),
}
SPOILED = [
    *((kind, *case) for kind in ("strict", "directions") for case in EVERY.values()),
    *(("strict", *case) for case in BY_WEIGHT.values()),
    *(("directions", *case) for case in ALONG.values()),
    *(("levels", *case) for case in LEVELS.values()),
]


@pytest.mark.parametrize(("kind", "spoil", "match"), SPOILED)
def test_a_state_that_cannot_be_is_refused_without_a_digest_too(kind: str, spoil: Any, match: str) -> None:
    state = saved_by(kind)
    del state["digest"]
    BLIP(Net(), **KINDS[kind]).load_state_dict(copy.deepcopy(state))
    spoil(state)
    model, blip = trained(kind)
    before = snapshot(model, blip)
    with pytest.raises(ValueError, match=match):
        blip.load_state_dict(state)
    assert_same(snapshot(model, blip), before)


def test_a_flip_of_any_bit_of_a_tensor_is_refused_by_name(kind: str) -> None:
    state, rng = saved_by(kind), random.Random(0)
    blip = BLIP(Net(), **KINDS[kind])
    for path, tensor in all_tensors(state):
        flat = tensor.contiguous().view(-1).view(torch.uint8).clone()
        flat[rng.randrange(len(flat))] ^= 1 << rng.randrange(8)
        damaged = copy.deepcopy(state)
        put(*path, value=flat.view(tensor.dtype).view(tensor.shape))(damaged)
        with pytest.raises(ValueError, match=rf"damaged: .*'{path[-1]}' of '{path[-2]}'"):
            blip.load_state_dict(damaged)
    blip.load_state_dict(state)


def test_swapped_tensors_and_changed_numbers_are_refused(kind: str) -> None:
    blip = BLIP(Net(), **KINDS[kind])
    state = saved_by(kind)
    tensors = state["tensors"]
    tensors["heads.0.weight"], tensors["heads.1.weight"] = tensors["heads.1.weight"], tensors["heads.0.weight"]
    with pytest.raises(ValueError, match="damaged"):
        blip.load_state_dict(state)
    state = saved_by(kind)
    state["tensors"][WEIGHT]["bound"] *= 2
    with pytest.raises(ValueError, match="names, numbers and shapes are not what was saved"):
        blip.load_state_dict(state)
    state = saved_by(kind)
    state["digest"] = state["digest"].rpartition(" ")[0]
    with pytest.raises(ValueError, match="its digest was cut off"):
        blip.load_state_dict(state)


def test_the_order_of_keys_and_a_file_leave_the_digest_valid(kind: str) -> None:
    state = saved_by(kind)
    file = io.BytesIO()
    torch.save(dict(reversed(state.items())), file)
    file.seek(0)
    BLIP(Net(), **KINDS[kind]).load_state_dict(torch.load(file, weights_only=True))
