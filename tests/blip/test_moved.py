"""Parameters that get another place or name while they stay what they are, and places that get another parameter."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.optim import SGD

from bitfreeze import BLIP
from support.protected_nets import (
    GUARDS,
    Net,
    assert_inside,
    assert_same,
    make_task,
    protected,
    shift,
    train,
    train_sgd,
)

pytestmark = pytest.mark.filterwarnings("ignore:no weight reached the edge", "ignore:no watched weight has changed")


class LowRank(nn.Module):
    """A layer and a small correction of it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(2, base.in_features) / 10)
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def wrap(model: Net) -> str:
    model.backbone[0] = LowRank(model.backbone[0])
    return "backbone.0.base.weight"


def pruned(model: Net) -> str:
    prune.l1_unstructured(model.backbone[0], "weight", 0.3)
    return "backbone.0.weight_orig"


def parametrised(model: Net) -> str:
    parametrize.register_parametrization(model.backbone[0], "weight", Twice())
    return "backbone.0.parametrizations.weight.original"


MOVES: dict[str, Callable[[Net], str]] = {"wrapped": wrap, "pruned": pruned, "parametrised": parametrised}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("copied", [False, True], ids=["", "copied"])
def test_frozen_bits_stay_with_their_parameter(move, copied: bool, guard: str) -> None:
    model, blip = protected(guard=guard)
    if copied:
        model, blip = copy.deepcopy((model, blip))
    ends = blip.intervals().get("backbone.0.weight", (-torch.inf, torch.inf))
    frozen = blip.frozen_bits()["backbone.0.weight"]
    assert frozen.any()
    name = move(model)
    assert torch.equal(blip.frozen_bits()[name], frozen)
    for task in (1, 2):
        train_sgd(model, task, rate=5.0)
        value = dict(model.named_parameters())[name]
        assert ((ends[0] <= value) & (value <= ends[1])).all()
        assert_inside(blip)
        blip.consolidate([make_task(task)])
    if guard == "strict":
        assert (blip.frozen_bits()[name] >= frozen).all()
    state = blip.state_dict()
    assert not state["absent"]
    assert state["tensors"][name]["tasks"] == 3


def test_a_tied_tensor_stays_when_its_first_owner_goes(guard: str) -> None:
    model = Net()
    model.heads[1].weight = model.heads[0].weight
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)])
    frozen = blip.frozen_bits()["heads.0.weight"]
    model.heads[0] = nn.Linear(8, 3, bias=False)
    model.heads[0].weight = None
    assert torch.equal(blip.frozen_bits()["heads.1.weight"], frozen)
    train(model, make_task(1), SGD(model.parameters(), lr=5.0), forward=lambda x: model(x, 1))
    assert_inside(blip)


def test_a_module_that_is_new_under_an_old_name_is_clamped_when_asked(guard: str) -> None:
    model, blip = protected(guard=guard)
    model.backbone[0] = nn.Linear(6, 10)
    shift(model.backbone[0], by=2.0)
    with pytest.raises(RuntimeError, match=r"or modules replaced|call blip\.clamp_\(\)"):
        blip.consolidate([make_task(1)])
    blip.clamp_()
    assert_inside(blip)
    blip.consolidate([make_task(1)])


def test_names_of_absent_parameters_are_renamed_too(guard: str) -> None:
    model, blip = protected(guard=guard)
    head, expected = model.heads[3], blip.frozen_bits()
    del model.heads[3]
    blip.consolidate([make_task(1)])
    state = blip.state_dict()
    assert list(state["absent"]) == ["heads.3.weight", "heads.3.bias"]
    other = Net()
    del other.heads[3]
    fresh = BLIP(other, **GUARDS[guard])
    fresh.load_state_dict(state, rename=lambda name: name.replace("heads.3", "tail"))
    other.add_module("tail", head)
    found = fresh.frozen_bits()
    assert_same({name: found[f"tail.{name}"] for name in ("weight", "bias")}, {
        name: expected[f"heads.3.{name}"] for name in ("weight", "bias")
    })  # fmt: skip


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not int"):
        BLIP(5)
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="'weight' has no values yet"):
        BLIP(empty)
