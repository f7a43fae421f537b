"""Where a method has nothing to add it is fine-tuning, to the last bit; and it works on other networks than MLPs."""

import pytest
import torch

from bitfreeze.lab.training import accuracy
from support.small_tasks import STREAM, TASKS, convolutional, flat, learn, prepare

NOTHING_TO_ADD = [
    ("ewc", {"strength": 0.0}),
    ("imm", {"strength": 0.0, "merge": False}),
    ("lwf", {"strength": 0.0}),
]
SMALL = {"threshold": 0.5}  # of a space of 10 directions the papers' thresholds leave later tasks nearly nothing


def after(name, tasks, **options):
    method = prepare(name, **options)
    for task in TASKS[:tasks]:
        learn(method, task)
    return flat(method.net)


@pytest.mark.parametrize("name", ["ft_fix", "ewc", "imm", "lwf", "agem", "gpm", "sgp"])
def test_the_first_task_is_learned_as_by_fine_tuning(name):
    assert torch.equal(after(name, 1), after("ft", 1))
    assert not torch.equal(after(name, 2), after("ft", 2))


@pytest.mark.parametrize(("name", "options"), NOTHING_TO_ADD)
def test_with_strength_0_all_tasks_are_learned_as_by_fine_tuning(name, options):
    assert torch.equal(after(name, 3, **options), after("ft", 3))


@pytest.mark.parametrize(
    ("name", "options"),
    [("ewc", {"strength": 20.0}), ("imm", {}), ("lwf", {}), ("agem", {}), ("gpm", SMALL), ("sgp", SMALL)],
)
def test_convolutions_pooling_and_dropout(name, options):
    method = prepare(name, convolutional, **options)
    for task in TASKS[:3]:
        learn(method, task)
    assert accuracy(method, method.net, task, STREAM.load(task).test, 500) > 80
