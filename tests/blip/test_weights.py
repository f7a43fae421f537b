"""What attach and consolidate do to the weights, and what they never do."""

import pytest
import torch
from torch.optim import SGD

from bitfreeze import BLIP, Rules
from support.protected_nets import (
    RULES,
    Net,
    assert_inside,
    entries_at_an_end,
    intervals_from_state,
    make_task,
    train,
    train_sgd,
    watched,
)


def test_attaching_changes_no_output_and_adds_no_key() -> None:
    model = Net()
    x, keys = make_task(0)[0], list(model.state_dict())
    with torch.no_grad():
        model.heads[0].weight.mul_(50)  # beyond the usual range
        before = model(x)
        blip = BLIP(model)
        blip.attach()
        assert torch.equal(model(x), before)
    train_sgd(model, 0)
    blip.consolidate([x])
    assert list(model.state_dict()) == keys == list(Net().state_dict())


@pytest.mark.parametrize("rules", RULES)
def test_consolidate_changes_weights_only_as_released(rules: str) -> None:
    model = Net()
    blip = BLIP(model, budget=0.3, rules=RULES[rules])
    blip.attach()
    for task in range(3):
        train_sgd(model, task)
        before = {name: value.clone() for name, value in watched(blip).items()}
        blip.consolidate([make_task(task)])
        same = {name: torch.equal(value, before[name]) for name, value in watched(blip).items()}
        assert not any(same[n] for n in same if "backbone" in n) if rules == "released" else all(same.values())


@pytest.mark.parametrize("rules", ["strict", "released", "text", "straight_through"])
@pytest.mark.parametrize("seed", range(3))
def test_two_tasks_without_a_step_between_them(rules: str, seed: int) -> None:
    """Parameters right after a consolidate are inside their intervals, at the edge of the range too."""
    torch.manual_seed(seed)
    model = Net(seed)
    blip = BLIP(model, prior=1e-4, rules=RULES[rules])
    blip.attach()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 4)  # many are clamped to the ends of the range
    blip.clamp_()
    for task in range(3):
        blip.consolidate([make_task(task)], forward=lambda x: 0.01 * model(x))
        assert_inside(blip)


@pytest.mark.filterwarnings("ignore:.*has run out of free bits")
@pytest.mark.parametrize("seed", range(2))
def test_strict_nests_exactly_end_to_end_over_30_tasks(seed: int) -> None:
    model = Net(seed)
    blip = BLIP(model, budget=0.05)
    blip.attach()
    ends, exact, frozen = blip.intervals(), None, blip.frozen_bits()
    for task in range(30):
        train(model, make_task(task), SGD(model.parameters(), lr=20.0), steps=3, after_step=lambda: assert_inside(blip))
        blip.consolidate([make_task(task)], labels="exact")
        before, frozen, before_ends, ends = frozen, blip.frozen_bits(), ends, blip.intervals()
        exact = intervals_from_state(blip)
        for name, (low, high) in ends.items():
            assert (before_ends[name][0] <= low).all()
            assert (high <= before_ends[name][1]).all()
            assert torch.equal(low.double(), exact[name][0])
            assert torch.equal(high.double(), exact[name][1])
            assert (before[name] <= frozen[name]).all()
            assert (frozen[name] <= blip.depth).all()
        assert_inside(blip)
    assert entries_at_an_end(blip) > 0
    assert 0.1 < blip.capacity() < 1


def test_straight_through_keeps_theta_with_two_attachments() -> None:
    """To all optimizers and to this one: rounding twice must not lose what rounding took."""
    results, blips = [], []
    for double in (False, True):
        model = Net()
        blip = BLIP(model, bits=6, budget=0.3, rules=Rules.text(straight_through=True))
        blips.append(blip)
        optimizer = SGD(model.parameters(), lr=0.01)
        blip.attach()
        if double:
            blip.attach(optimizer)
        train(model, make_task(0), optimizer, steps=20)
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
