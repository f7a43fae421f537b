"""Inside of a user's autocast BLIP computes as outside of it: to the bit, in the precision of the weights."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.rules import WeightRules

RULES = [
    Rules.directions(every=1),
    Rules.directions(strongest=4, leading=2, leading_every=1),
    replace(Rules.strict(), levels=True),
]
IDS = ["directions", "leading directions", "levels"]


def half():
    return torch.autocast("cpu", torch.bfloat16)


def two_tasks(rules, around_blip):
    """Weights and state after a task, some steps on another and its end, all that is BLIP's inside of a context."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    blip = BLIP(model, rules=rules, budget=0.4 if isinstance(rules, WeightRules) else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    told = []
    for task in range(2):
        x, y = torch.randn(64, 8), torch.randint(3, (64,))
        with around_blip():
            handle = blip.attach()
        for _ in range(12):
            optimizer.zero_grad()
            F.cross_entropy(model(x + task), y).backward()
            with around_blip():
                optimizer.step()
        handle.remove()
        with around_blip():
            blip.clamp_()
            told.append(blip.drift())
            blip.consolidate([(x + task, y)], generator=torch.Generator().manual_seed(task))
            told += [bits.double().sum().item() for bits in blip.frozen_bits().values()]
    return [p.detach().clone() for p in model.parameters()], told


@pytest.mark.parametrize("rules", RULES, ids=IDS)
def test_steps_clamps_and_ends_of_tasks_are_the_same_inside_of_autocast(rules):
    outside, inside = two_tasks(rules, nullcontext), two_tasks(rules, half)
    assert outside[1] == inside[1]
    assert all(torch.equal(a, b) for a, b in zip(outside[0], inside[0], strict=True))


def test_autocast_is_as_before_after_a_step_and_after_an_error():
    model = nn.Linear(4, 2)
    blip = BLIP(model)
    with half():
        blip.clamp_()
        assert torch.is_autocast_enabled("cpu")
        with pytest.raises(ValueError, match="at least one sample"):
            blip.consolidate([])
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
