"""Copies, pickles and wrappers of a model and its BLIP."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim import SGD

from bitfreeze import BLIP
from support.protected_nets import (
    GUARDS,
    OTHER_WEIGHTS,
    Net,
    assert_inside,
    assert_same,
    entries_at_an_end,
    make_task,
    protected,
    shift,
    snapshot,
    train_sgd,
)


@pytest.mark.parametrize("way", ["deepcopy", "deepcopy of both", "pickle"])
@OTHER_WEIGHTS
def test_a_copy_is_attached_and_independent(way: str, guard: str) -> None:
    model, blip = protected(guard=guard)
    if way == "deepcopy":
        twin = copy.deepcopy(blip)
    elif way == "deepcopy of both":
        twin_model, twin = copy.deepcopy((model, blip))
        assert twin.model is twin_model
    else:
        twin = pickle.loads(pickle.dumps(blip))
    assert twin.model is not model
    assert_same(twin.state_dict(), blip.state_dict())
    before = snapshot(model, blip)
    shift(twin.model, by=2.0)
    train_sgd(twin.model, 1, rate=10.0)
    assert_inside(twin)
    assert entries_at_an_end(twin) > 0
    twin.consolidate([make_task(1)])
    assert twin.tasks == 2
    del before["random"]
    after = snapshot(model, blip)
    del after["random"]
    assert_same(after, before)
    shift(model)
    train_sgd(model, 1)
    assert_inside(blip)


def test_copies_of_one_blip_that_go_the_same_way_stay_the_same(guard: str) -> None:
    _, blip = protected(guard=guard)
    twins = [copy.deepcopy(blip), pickle.loads(pickle.dumps(blip))]
    for each in (blip, *twins):
        train_sgd(each.model, 1)
        each.consolidate([make_task(1)], labels="exact")
    for twin in twins:
        assert_same(twin.state_dict(), blip.state_dict())


def test_a_copy_of_what_was_not_attached_to_all_optimizers_is_not_attached(guard: str) -> None:
    for attach in (False, True):
        model = Net()
        blip = BLIP(model, **GUARDS[guard])
        if attach:  # to an optimizer that the copy's model does not have
            blip.attach(SGD(model.parameters(), lr=0.1))
        twin = copy.deepcopy(blip)
        shift(twin.model)
        train_sgd(twin.model, 0, steps=1)
        assert twin.model.heads[0].bias.min() > 90


# wrappers


def test_a_compiled_model_keeps_its_names_and_is_clamped(guard: str) -> None:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    blip = BLIP(compiled, watch=compiled.backbone, **GUARDS[guard])
    blip.attach()
    for task in range(2):
        train_sgd(compiled, task, rate=5.0)
        assert_inside_of(model, blip)
        blip.consolidate([make_task(task)])
    plain = Net()
    assert list(blip.frozen_bits()) == [f"backbone.{name}" for name, _ in plain.backbone.named_parameters()]
    BLIP(plain, watch=plain.backbone, **GUARDS[guard]).load_state_dict(blip.state_dict())


def assert_inside_of(model: nn.Module, blip: BLIP) -> None:
    parameters = dict(model.named_parameters())
    for name, (low, high) in blip.intervals().items():
        assert ((low <= parameters[name]) & (parameters[name] <= high)).all()


def test_a_data_parallel_model_keeps_its_names(guard: str) -> None:
    model = Net()
    parallel = nn.DataParallel(model)
    blip = BLIP(parallel)
    blip.attach()
    train_sgd(parallel, 0)
    blip.consolidate([make_task(0)])
    assert list(blip.frozen_bits()) == [name for name, _ in model.named_parameters()]
    assert list(BLIP(nn.DataParallel(torch.compile(Net(), backend="eager"))).frozen_bits()) == list(blip.frozen_bits())
