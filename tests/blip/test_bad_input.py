"""Each gets one exception that says what to do, and leaves model and state bit for bit as they were."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from bitfreeze import BLIP, Rules
from support.protected_nets import GUARDS, Net, assert_same, make_task, protected, snapshot

pytestmark = pytest.mark.filterwarnings("ignore:no weight reached the edge", "ignore:no watched weight has changed")

OTHER = Net(seed=5)
Spoil = Callable[[Net], Any]
Act = Callable[[Net, BLIP], Any]


def put(value: float) -> Spoil:
    def spoil(model: Net) -> None:
        with torch.no_grad():
            model.backbone[2].weight[1, 1] = value

    return spoil


def nothing(model: Net) -> None:
    pass


def consolidate(**arguments: Any) -> Act:
    return lambda model, blip: blip.consolidate([make_task(1)], **arguments)


def with_forward(make: Callable[[Net], Callable]) -> Act:
    return lambda model, blip: blip.consolidate([make_task(1)], forward=make(model))


def zero_root(model: Net) -> Callable:
    """Finite outputs with an infinite gradient."""
    return lambda x: (model(x) * 0 + model.heads[0].bias * 0).sqrt()


CONSOLIDATE = {
    "NaN weight": (put(torch.nan), consolidate(), ValueError, "'backbone.2.weight' has NaN or infinite entries"),
    "infinite weight": (put(-torch.inf), consolidate(), ValueError, "'backbone.2.weight' has NaN or infinite entries"),
    "NaN weight to mend": (put(torch.nan), consolidate(outside="mend"), ValueError, "restore the last good weights"),
    "NaN input": (nothing, lambda m, b: b.consolidate([torch.full((4, 6), torch.nan)]), ValueError, "not finite"),
    "infinite gradient": (nothing, with_forward(zero_root), ValueError, "not finite; look for"),
    "no batch": (nothing, lambda m, b: b.consolidate([]), ValueError, "at least one sample, got no samples; if data"),
    "used-up generator": (nothing, lambda m, b: b.consolidate(iter(())), ValueError, "got no samples"),
    "empty batch": (nothing, lambda m, b: b.consolidate([torch.zeros(0, 6)]), ValueError, "got no samples"),
    "a tensor as data": (nothing, lambda m, b: b.consolidate(make_task(1)[0]), TypeError, "an iterable of batches"),
    "one batch as data": (nothing, lambda m, b: b.consolidate(make_task(1)), TypeError, r"in a list, \[\(x, y\)\]"),
    "a dataset as data": (
        nothing, lambda m, b: b.consolidate(TensorDataset(*make_task(1))), TypeError,
        "got TensorDataset, a dataset of single samples; wrap it in a DataLoader",
    ),
    "nothing as data": (nothing, lambda m, b: b.consolidate(None), TypeError, "such as a DataLoader, got None"),
    "single logit": (nothing, with_forward(lambda m: lambda x: m(x)[:, :1]), ValueError, r"C >= 2, got \[32, 1\]"),
    "one number a sample": (nothing, with_forward(lambda m: lambda x: m(x)[:, 0]), ValueError, r"C\], got \[32\]"),
    "no tensor": (nothing, with_forward(lambda m: lambda x: None), TypeError, "class logits .* got NoneType"),
    "another model": (
        nothing, with_forward(lambda m: OTHER), ValueError, "does not depend on any watched parameter",
    ),
    "detached": (
        nothing, with_forward(lambda m: lambda x: m(x).detach()), ValueError, "does not depend on any watched",
    ),
    "forward that fails": (nothing, with_forward(lambda m: lambda x: 1 / 0), ZeroDivisionError, "division"),
    "unknown outside": (nothing, consolidate(outside="clip"), ValueError, "must be 'raise' or 'mend', got 'clip'"),
    "unknown labels": (nothing, consolidate(labels="all"), ValueError, "'exact' or 'true', got 'all'"),
    "labels missing": (
        nothing, lambda m, b: b.consolidate([make_task(1)[0]], labels="true"), ValueError, "labels='true' needs labels",
    ),
    "no samples asked for": (nothing, consolidate(samples=0), ValueError, "samples must be a whole number"),
}  # fmt: skip

ATTACH = {
    "optimizer of another model": (
        nothing, lambda m, b: b.attach(SGD(Net().parameters(), lr=1)), ValueError, "must hold a watched parameter",
    ),
    "not an optimizer": (nothing, lambda m, b: b.attach("adam"), TypeError, "must be a torch optimizer .* got str"),
    "a scheduler's like": (nothing, lambda m, b: b.attach([1]), TypeError, "a wrapper with .optimizer, got list"),
}  # fmt: skip


def load(change: Callable[[dict[str, Any]], Any], **arguments: Any) -> Act:
    """Load a good state of a twin, after a change."""
    return lambda model, blip: blip.load_state_dict(change(protected(seed=3)[1].state_dict()), **arguments)


def of_another_model(state: dict[str, Any]) -> dict[str, Any]:
    wide = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    blip = BLIP(wide, budget=0.3)
    blip.consolidate([make_task(0)])
    return blip.state_dict()


def of_other_shapes(state: dict[str, Any]) -> dict[str, Any]:
    model = Net()
    model.heads[1] = nn.Linear(8, 5)
    blip = BLIP(model, budget=0.3)
    blip.consolidate([make_task(0)])
    return blip.state_dict()


def of_settings(**settings: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: protected(seed=3, **settings)[1].state_dict()


LOAD = {
    "nothing": (load(lambda s: None), "must be a state dict of a BLIP, .*pass what blip.state_dict"),
    "a list": (load(list), "must be a state dict of a BLIP"),
    "the model's": (lambda m, b: b.load_state_dict(m.state_dict()), "must be a state dict of a BLIP"),
    "another format": (load(lambda s: {**s, "format": 99}), "must be a state dict of a BLIP"),
    "other names": (load(of_another_model), "the state must be of this model, got one with '0.bias', .*use rename="),
    "wrongly renamed": (load(dict, rename=lambda n: "x." + n), "of this model, got one with 'x.backbone.0.bias'"),
    "other shapes": (
        load(of_other_shapes),
        r"'heads.1.weight' of shape \[5, 8\], which has the shape \[3, 8\] here",
    ),
    "other depth": (load(of_settings(bits=12)), r"same settings, got bits=12 there, 20 here; use the same"),
    "other bound": (load(of_settings(bound=20.0)), r"same settings, got bound=20.0 there, 6.0 here"),
    "other budget": (load(of_settings(budget=0.2)), r"same settings, got budget=0.2 there, 0.3 here"),
    "a given prior": (load(of_settings(prior=1e-3)), r"same settings, got .*prior=0.001 there, None here"),
    "other rules": (load(of_settings(rules=Rules.released())), r"centre='rounded' there, 'nested' here; .*snap=True"),
}


@pytest.mark.parametrize(
    ("spoil", "act", "kind", "match"), [*CONSOLIDATE.values(), *ATTACH.values()], ids=[*CONSOLIDATE, *ATTACH]
)
@pytest.mark.parametrize("started", [False, True], ids=["first task", "later"])
def test_refused(started: bool, spoil: Spoil, act: Act, kind: type[Exception], match: str, guard: str) -> None:
    if started:
        model, blip = protected(guard=guard)
    else:
        model = Net()
        blip = BLIP(model, **GUARDS[guard])
        blip.attach()
    model.heads[0].eval()
    model.heads[1].requires_grad_(False)
    spoil(model)
    before = snapshot(model, blip)
    with pytest.raises(kind, match=match):
        act(model, blip)
    assert_same(snapshot(model, blip), before)
    put(0.0)(model)
    blip.consolidate([make_task(1)])  # and it goes on


@pytest.mark.parametrize(("act", "match"), LOAD.values(), ids=LOAD)
def test_states_refused(act: Act, match: str) -> None:
    model, blip = protected()
    before = snapshot(model, blip)
    with pytest.raises(ValueError, match=match):
        act(model, blip)
    after = snapshot(model, blip)
    before["random"] = after["random"]  # making the other state draws random numbers
    assert_same(after, before)


SETTINGS = {
    "no bits": ({"bits": 0}, "bits must be a whole number from 1 to 23, got 0"),
    "more bits than float32 has": ({"bits": 24}, "bits must be a whole number from 1 to 23, got 24"),
    "half a bit": ({"bits": 2.5}, "bits must be a whole number from 1 to 23, got 2.5"),
    "prior 0": ({"prior": 0}, "prior must be above 0 and finite, got 0"),
    "prior below 0": ({"prior": -1.0}, "prior must be above 0 and finite, got -1.0"),
    "prior NaN": ({"prior": float("nan")}, "prior must be above 0 and finite, got nan"),
    "prior infinite": ({"prior": float("inf")}, "prior must be above 0 and finite, got inf"),
    "budget 0": ({"budget": 0}, "budget must be a share of the bits, .* got 0"),
    "budget 1": ({"budget": 1}, "budget must be a share of the bits, .* got 1"),
    "budget in percent": ({"budget": 10}, "budget must be a share of the bits, .* got 10"),
    "budget NaN": ({"budget": float("nan")}, "budget must be a share of the bits, .* got nan"),
    "bound 0": ({"bound": 0}, "bound must be above 0, got 0"),
    "bound NaN": ({"bound": float("nan")}, "bound must be above 0, got nan"),
    "tolerance 0": ({"tolerance": 0}, "tolerance must be above 0, .* got 0; the default, 0.05"),
    "foreign watch": ({"watch": nn.Linear(1, 1)}, "watch must be part of the model, got .*; give a submodule"),
    "unknown name": (
        {"watch": ["backbone.9.weight"]},
        "watch must name parameters .* got 'backbone.9.weight'",
    ),
    "nothing to watch": ({"watch": []}, "at least one parameter, got none"),
}


@pytest.mark.parametrize(("settings", "match"), SETTINGS.values(), ids=SETTINGS)
def test_settings_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        BLIP(Net(), **settings)


OF_ANOTHER_KIND = {
    "tolerance in words": ({"tolerance": "0.05"}, "tolerance must be a number, above 0, .* got '0.05'; the default"),
    "tolerance of a list": ({"tolerance": [0.05]}, r"tolerance must be a number, above 0, .* got \[0.05\]"),
    "tolerance of a tensor": ({"tolerance": torch.tensor(0.05)}, "tolerance must be a number, .* got tensor"),
    "tolerance switched on": ({"tolerance": True}, "tolerance must be a number, above 0, .* got True"),
    "budget in words": ({"budget": "x"}, "budget must be a number, a share of the bits, .* got 'x'"),
    "bound in words": ({"bound": "6"}, "bound must be a number, above 0, got '6'"),
    "freeze_statistics in words": ({"freeze_statistics": "False"}, "freeze_statistics must be True or False, got 'Fal"),
    "parameters": (
        {"watch": list(nn.Linear(1, 1).parameters())},
        "watch must be a submodule, a name, or a list of these, got Parameter; .*named_parameters",
    ),
    "a number": ({"watch": 3}, "watch must be a submodule, a name, or a list of these, got int"),
}


@pytest.mark.parametrize(("settings", "match"), OF_ANOTHER_KIND.values(), ids=OF_ANOTHER_KIND)
def test_settings_of_another_kind_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        BLIP(Net(), **settings)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("act", [BLIP.attach, BLIP.clamp_, lambda b: b.consolidate([make_task(0)])])
def test_weights_that_are_not_finite_at_the_start(value: float, act: Callable[[BLIP], Any], guard: str) -> None:
    model = Net()
    put(value)(model)
    blip = BLIP(model, **GUARDS[guard])
    before = snapshot(model, blip)
    with pytest.raises(ValueError, match=r"'backbone\.2\.weight' has NaN or infinite entries: restore"):
        act(blip)
    assert_same(snapshot(model, blip), before)


def test_a_step_with_gradients_that_are_not_finite_is_noticed_at_the_end_of_the_task(guard: str) -> None:
    model, blip = protected(guard=guard)
    optimizer = SGD(model.parameters(), lr=0.1)
    model(make_task(1)[0]).sum().backward()
    model.backbone[0].weight.grad[0, 0] = torch.nan
    optimizer.step()
    with pytest.raises(ValueError, match=r"'backbone\.0\.weight' has NaN or infinite entries"):
        blip.consolidate([make_task(1)])


def test_a_failure_at_the_first_consolidate_fixes_nothing(guard: str) -> None:
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    before = snapshot(model, blip)
    with pytest.raises(ValueError, match="no samples"):
        blip.consolidate([])
    assert_same(snapshot(model, blip), before)
