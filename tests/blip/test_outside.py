"""A parameter that left its interval is noticed, with the likely cause, or mended when asked."""

import copy

import pytest
import torch
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

from bitfreeze import BLIP
from support.protected_nets import (
    GUARDS,
    Net,
    assert_inside,
    assert_same,
    make_task,
    protected,
    shift,
    snapshot,
    train,
    train_sgd,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:no weight reached the edge", "ignore:no watched weight has changed", "ignore:watched parameters are trained"
)


def never_attached(guard: str) -> BLIP:
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    blip.consolidate([make_task(0)])
    train_sgd(model, 1, rate=50.0)
    return blip


def detached(guard: str) -> BLIP:
    model, blip = protected(guard=guard)
    blip.attach().remove()
    train_sgd(model, 1, rate=50.0)
    return blip


def optimizer_rebuilt(guard: str) -> BLIP:
    """Attached to one optimizer, trained with another."""
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    first = SGD(model.parameters(), lr=1.0)
    blip.attach(first)
    train(model, make_task(0), first)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1, rate=50.0)
    return blip


def best_weights_restored(guard: str) -> BLIP:
    """Those from before the last task ended."""
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    best = {name: value.clone() for name, value in model.state_dict().items()}
    train_sgd(model, 0, rate=5.0)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1)
    model.load_state_dict(best)
    return blip


def averaged(guard: str) -> BLIP:
    """A moving average that began before the last task ended."""
    model = Net()
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    average = AveragedModel(model)
    average.update_parameters(model)
    train_sgd(model, 0, rate=5.0)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1)
    average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())
    return blip


CASES = {
    "never attached": (never_attached, "no optimizer is attached, so call blip.attach"),
    "detached": (detached, "no optimizer is attached, so call blip.attach"),
    "optimizer rebuilt": (optimizer_rebuilt, "no optimizer is attached, so call blip.attach"),
    "best weights restored": (best_weights_restored, r"changed after the last step .* so call blip.clamp_\(\) after"),
    "averaged": (averaged, r"changed after the last step .* so call blip.clamp_\(\) after"),
}


OUTSIDE = {
    "strict": "entries of '.*' lie outside their interval, by up to .*",
    "directions": r"weights that cost the earlier tasks about .* nats, far above the tolerance of 0\.02",
}


@pytest.mark.parametrize(("make", "cause"), CASES.values(), ids=CASES)
def test_it_is_noticed_with_the_likely_cause(make, cause: str, guard: str) -> None:
    blip = make(guard)
    before = snapshot(blip.model, blip)
    with pytest.raises(RuntimeError, match=rf"{OUTSIDE[guard]}: .*{cause}"):
        blip.consolidate([make_task(1)])
    assert_same(snapshot(blip.model, blip), before)


@pytest.mark.parametrize("make", [case[0] for case in CASES.values()], ids=CASES)
def test_it_is_mended_by_clamping(make) -> None:
    blip = make("strict")
    ends = blip.intervals()
    expected = {name: torch.clamp(dict(blip.model.named_parameters())[name], *ends[name]).detach() for name in ends}
    blip.consolidate([make_task(1)], outside="mend")
    assert_inside(blip)
    assert_same({name: value.detach() for name, value in blip.model.named_parameters()}, expected)
    for name, (low, high) in blip.intervals().items():
        assert ((ends[name][0] <= low) & (high <= ends[name][1])).all()


@pytest.mark.parametrize("make", [case[0] for case in CASES.values()], ids=CASES)
def test_it_is_mended_along_directions_as_clamp_does(make) -> None:
    blip = make("directions")
    twin = copy.deepcopy(blip)
    assert blip.drift() > 0.02
    twin.clamp_()
    blip.consolidate([make_task(1)], outside="mend")
    assert twin.drift() <= 0.02
    assert_same(dict(blip.model.state_dict()), dict(twin.model.state_dict()))


def test_clamp_after_restoring_is_enough(guard: str) -> None:
    blip = best_weights_restored(guard)
    blip.clamp_()
    blip.consolidate([make_task(1)])
    assert_inside(blip)


def test_restoring_weights_of_the_same_task_is_always_inside(guard: str) -> None:
    model, blip = protected(guard=guard)
    train_sgd(model, 1)
    best = {name: value.clone() for name, value in model.state_dict().items()}
    train_sgd(model, 1)
    model.load_state_dict(best)
    blip.consolidate([make_task(1)])
    if guard == "strict":
        assert_same(dict(model.state_dict()), best)
    else:  # coordinates at their edge are moved there again, and that rounds
        torch.testing.assert_close(dict(model.state_dict()), best, rtol=0, atol=1e-7)


def test_the_message_counts_the_entries_and_the_worst_distance() -> None:
    model, blip = protected()
    _, high = blip.intervals()["backbone.0.weight"]
    with torch.no_grad():
        model.backbone[0].weight.copy_(high)
        model.backbone[0].weight[0, :3] += torch.tensor([0.25, 1.0, 0.5])
    with pytest.raises(RuntimeError, match=r"^3 entries of 'backbone.0.weight' lie outside .* by up to 1:"):
        blip.consolidate([make_task(0)])


def test_mending_leaves_the_model_alone_when_something_else_is_wrong(guard: str) -> None:
    model, blip = protected(guard=guard)
    shift(model)
    before = snapshot(model, blip)
    with pytest.raises(ValueError, match="no samples"):
        blip.consolidate([], outside="mend")
    assert_same(snapshot(model, blip), before)


def test_a_replaced_submodule_does_not_go_unnoticed(guard: str) -> None:
    model, blip = protected(guard=guard)
    model.backbone[0] = torch.nn.Linear(6, 10)
    shift(model.backbone[0], by=2.0)
    with pytest.warns(UserWarning, match="that the last task left, got"):
        train_sgd(model, 1)
    assert_inside(blip)
    blip.consolidate([make_task(1)])
