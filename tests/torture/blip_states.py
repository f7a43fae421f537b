"""Attacks on the saved state of a BLIP."""

import copy
import io
import warnings
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from bitfreeze import BLIP, Rules
from bitfreeze.blip.rules import WeightRules
from support.protected_nets import Net, make_task, train_sgd
from torture.attacks import WRONG, Outcomes, Setting, attack

KINDS: dict[str, dict[str, Any]] = {
    "strict": {"rules": Rules.strict(), "budget": 0.3},
    "released": {"rules": Rules.released(), "budget": 0.3},
    "levels": {"rules": WeightRules(centre="following", levels=True), "budget": 0.3},
    "straight through": {"rules": Rules.text(straight_through=True), "budget": 0.3},
    "directions": {"tolerance": 0.02},
    "few directions": {"rules": Rules.directions(strongest=3), "tolerance": 0.02},
}


def saved_states(kinds: dict[str, dict[str, Any]] = KINDS) -> dict[str, dict[str, Any]]:
    """A state of each kind, saved in the middle of its third task."""
    states = {}
    for kind, settings in kinds.items():
        model = Net()
        blip = BLIP(model, **settings)
        blip.attach()
        for task in range(2):
            train_sgd(model, task)
            blip.consolidate([make_task(task)])
        train_sgd(model, 2)
        states[kind] = blip.state_dict()
    return states


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: Any, b: Any) -> bool:
    """Whether two nested states are equal to the last bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def try_to_load(kind: str, state: Any, original: Any, cause: object, found: Outcomes) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            BLIP(Net(), **KINDS[kind]).load_state_dict(state)
    except ValueError as error:
        found.note(
            "refused by name" if " must " in str(error) or "damaged" in str(error) else f"{WRONG} sentence", error
        )
    except Exception as error:
        found.note(f"{WRONG} kind of error", f"{kind} {cause}: {error!r}")
    else:
        found.note("without effect" if same(state, original) else f"{WRONG}, believed", f"{kind} {cause}")


@attack("state-flips", short=120, long=20_000)
def flip_state_files(setting: Setting, found: Outcomes) -> None:
    """a bit flipped anywhere in the file of a BLIP state, loaded with weights_only=True"""
    files = {}
    for kind, state in saved_states().items():
        file = io.BytesIO()
        torch.save(state, file)
        files[kind] = state, file.getvalue()
    for _ in setting.turns():
        kind = setting.rng.choice(list(files))
        state, data = files[kind]
        at, bit = setting.rng.randrange(len(data)), 1 << setting.rng.randrange(8)
        damaged = bytearray(data)
        damaged[at] ^= bit
        try:
            loaded = torch.load(io.BytesIO(damaged), weights_only=True)
        except Exception:  # torch's own checks: of many kinds
            found.note("refused by torch.load")
            continue
        try_to_load(kind, loaded, state, f"byte {at} bit {bit}", found)


ODD = [nan, inf, -inf, -1, 0, 0.5, 2**31, 1e300, True, None, "1", [], {}, torch.zeros(2), torch.tensor(nan)]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values of a nested state."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [each for key, item in items for each in places(item, (*path, key))]


def at(state: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        state = state[key]
    return state


@attack("state-edits", short=200, long=20_000)
def edit_states(setting: Setting, found: Outcomes) -> None:
    """a value of a BLIP state without a digest replaced, removed, or an entry of a tensor set to what cannot be"""
    states = saved_states()
    for state in states.values():
        del state["digest"]
    rng = setting.rng
    for _ in setting.turns():
        kind = rng.choice(list(states))
        state = copy.deepcopy(states[kind])
        path = rng.choice([path for path in places(state) if path[0] != "settings"])
        value, holder = at(state, path), at(state, path[:-1])
        if isinstance(value, Tensor):
            value = holder[path[-1]] = value.contiguous()
        if isinstance(value, Tensor) and value.is_floating_point() and rng.random() < 0.7:
            odd = rng.choice([nan, inf, -inf] + [-1.0] * (path[-1] in ("fisher", "input_energy", "output_energy")))
            value.reshape(-1)[rng.randrange(value.numel())] = odd
        elif isinstance(value, Tensor) and not value.is_floating_point() and rng.random() < 0.7:
            value.reshape(-1)[rng.randrange(value.numel())] = 255 if value.dtype == torch.uint8 else 2**30
        elif rng.random() < 0.3 and isinstance(holder, dict):
            del holder[path[-1]]
        else:
            odd = rng.choice(ODD)
            # another number in its range is a state that can be, so only a digest finds it
            if isinstance(value, int | float) and isinstance(odd, int | float) and not isinstance(odd, bool):
                odd = rng.choice([nan, inf, -inf, -1, "x"] + [0.5] * isinstance(value, int))
            holder[path[-1]] = odd
        if not is_still_possible(path, state, states[kind]):
            try_to_load(kind, state, states[kind], path, found)


def is_still_possible(path: tuple[Any, ...], state: Any, original: Any) -> bool:
    """Whether the edit may be what another BLIP has saved: a tensor of a task that was never learned, and the like."""
    if same(state, original):
        return True
    removed = path[-1] not in at(state, path[:-1]) if isinstance(at(state, path[:-1]), dict) else False
    optional = path[-1] == "residual" or path[0] in ("stepped", "clamped", "paces") or len(path) == 1
    empty = not removed and isinstance(at(state, path), list | dict) and not at(state, path)
    return (removed or empty) and (optional or (path[0] in ("tensors", "absent") and len(path) == 2))
