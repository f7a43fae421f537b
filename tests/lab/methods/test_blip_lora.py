"""Held adapters over several tasks, each merged when its task ends."""

import pytest
import torch

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.training import Settings, Training, accuracy

SETTINGS = Settings(lr=5e-3, batch=32, epochs=6, optimizer="adamw")


def trained(name: str, tasks: int = 3, **options):
    torch.manual_seed(0)
    stream = make_stream("digits5")
    net = build_network({"kind": "mlp", "hidden": [32, 32]}, stream.shape, [t.classes for t in stream.tasks])
    method = make_method(name, {"rank": 4, **options})
    net = method.build(net, stream.tasks)
    first, merged, answers = stream.load(stream.tasks[0]).test, [], []
    for task in stream.tasks[:tasks]:
        data = stream.load(task)
        for _ in Training(method, net, task, data, SETTINGS, seed=task.index).epochs():
            pass
        if getattr(method, "held", None) is not None:
            method.held.clamp_()
        before = [a.layer.weight.clone() for a in method.adapters]
        changes = [a.scale * (a.up @ a.down).detach() for a in method.adapters]
        method.end_task(task, data)
        merged.append((before, changes, [a.layer.weight.clone() for a in method.adapters]))
        with torch.no_grad():
            answers.append(method.logits(first.take(torch.arange(len(first)))[0], stream.tasks[0]).log_softmax(1))
    lost = (answers[0].exp() * (answers[0] - answers[-1])).sum(1).mean().item()
    return method, lost, accuracy(method, net, task, data.test, 500), merged


def test_earlier_tasks_are_kept_where_plain_adapters_change_them():
    """By the divergence of the first task's answers from those that it was learned with."""
    _, plain, *_ = trained("lora")
    method, held, last, _ = trained("blip_lora", tolerance=0.005)
    assert plain > 0.05
    assert held < plain / 2
    assert last > 90
    assert set(method.held.layers) == {"backbone.1.layer.weight", "backbone.3.layer.weight"}
    assert method.extra_bytes() > 0


def test_merged_weights_stay_where_the_held_adapters_left_them():
    """The end of a task moves them by little of what was learned, because the width is handed on."""
    *_, merged = trained("blip_lora", tasks=2)
    for before, change, after in zip(*merged[1], strict=True):
        assert change.norm() > 0
        assert (after - before - change).norm() < 0.1 * change.norm()


def test_a_task_costs_the_earlier_ones_no_more_than_the_tolerance():
    for tolerance in (0.05, 0.005):
        method, *_ = trained("blip_lora", tasks=2, tolerance=tolerance)
        drawn = torch.Generator().manual_seed(0)
        for adapter in method.adapters:  # a step far outside
            with torch.no_grad():
                adapter.up.normal_(generator=drawn)
        assert method.held.drift() > 10 * tolerance
        method.held.clamp_()
        assert 0 < method.held.drift() < 1.02 * tolerance


def test_rules_by_weight_hold_no_adapters():
    from bitfreeze import BLIP, Rules

    method, *_ = trained("blip_lora", tasks=1)
    with pytest.raises(ValueError, match=r"blip must hold along directions, got rules by weight"):
        method.held.settle(BLIP(torch.nn.Linear(2, 2), rules=Rules.strict()))
