"""A parameter that left its interval is noticed, with the likely cause, or mended when asked."""

import pytest
import torch
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

from bitfreeze import BLIP
from support.protected_nets import (
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


def never_attached() -> BLIP:
    model = Net()
    blip = BLIP(model, budget=0.3)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1, rate=50.0)
    return blip


def detached() -> BLIP:
    model, blip = protected()
    blip.attach().remove()
    train_sgd(model, 1, rate=50.0)
    return blip


def optimizer_rebuilt() -> BLIP:
    """Attached to one optimizer, trained with another."""
    model = Net()
    blip = BLIP(model, budget=0.3)
    first = SGD(model.parameters(), lr=1.0)
    blip.attach(first)
    train(model, make_task(0), first)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1, rate=50.0)
    return blip


def best_weights_restored() -> BLIP:
    """Those from before the last task ended."""
    model = Net()
    blip = BLIP(model, budget=0.3)
    blip.attach()
    best = {name: value.clone() for name, value in model.state_dict().items()}
    train_sgd(model, 0, rate=5.0)
    blip.consolidate([make_task(0)])
    train_sgd(model, 1)
    model.load_state_dict(best)
    return blip


def averaged() -> BLIP:
    """A moving average that began before the last task ended."""
    model = Net()
    blip = BLIP(model, budget=0.3)
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


@pytest.mark.parametrize(("make", "cause"), CASES.values(), ids=CASES)
def test_it_is_noticed_with_the_likely_cause(make, cause: str) -> None:
    blip = make()
    before = snapshot(blip.model, blip)
    with pytest.raises(RuntimeError, match=rf"entries of '.*' lie outside their interval, by up to .*: .*{cause}"):
        blip.consolidate([make_task(1)])
    assert_same(snapshot(blip.model, blip), before)


@pytest.mark.parametrize("make", [case[0] for case in CASES.values()], ids=CASES)
def test_it_is_mended_by_clamping(make) -> None:
    blip = make()
    ends = blip.intervals()
    expected = {name: torch.clamp(dict(blip.model.named_parameters())[name], *ends[name]).detach() for name in ends}
    blip.consolidate([make_task(1)], outside="mend")
    assert_inside(blip)
    assert_same({name: value.detach() for name, value in blip.model.named_parameters()}, expected)
    for name, (low, high) in blip.intervals().items():
        assert ((ends[name][0] <= low) & (high <= ends[name][1])).all()


def test_clamp_after_restoring_is_enough() -> None:
    blip = best_weights_restored()
    blip.clamp_()
    blip.consolidate([make_task(1)])
    assert_inside(blip)


def test_restoring_weights_of_the_same_task_is_always_inside() -> None:
    model, blip = protected()
    train_sgd(model, 1)
    best = {name: value.clone() for name, value in model.state_dict().items()}
    train_sgd(model, 1)
    model.load_state_dict(best)
    blip.consolidate([make_task(1)])
    assert_same(dict(model.state_dict()), best)


def test_the_message_counts_the_entries_and_the_worst_distance() -> None:
    model, blip = protected()
    _, high = blip.intervals()["backbone.0.weight"]
    with torch.no_grad():
        model.backbone[0].weight.copy_(high)
        model.backbone[0].weight[0, :3] += torch.tensor([0.25, 1.0, 0.5])
    with pytest.raises(RuntimeError, match=r"^3 entries of 'backbone.0.weight' lie outside .* by up to 1:"):
        blip.consolidate([make_task(0)])


def test_mending_leaves_the_model_alone_when_something_else_is_wrong() -> None:
    model, blip = protected()
    shift(model)
    before = snapshot(model, blip)
    with pytest.raises(ValueError, match="no samples"):
        blip.consolidate([], outside="mend")
    assert_same(snapshot(model, blip), before)


def test_a_replaced_submodule_does_not_go_unnoticed() -> None:
    model, blip = protected()
    model.backbone[0] = torch.nn.Linear(6, 10)
    shift(model.backbone[0], by=2.0)
    train_sgd(model, 1)
    with pytest.raises(RuntimeError, match=r"'backbone\.0\.(weight|bias)' lie outside their interval"):
        blip.consolidate([make_task(1)])
