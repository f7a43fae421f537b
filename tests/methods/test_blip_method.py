"""BLIP's own options, and what it shows after each task."""

import pytest
import torch

from bitfreeze import diagonal_fisher, information_gain
from bitfreeze.methods import make_method
from bitfreeze.nets import build_network
from bitfreeze.streams import make_stream
from bitfreeze.training import Settings, Training


def learned(options, tasks=2, after=lambda method, task, data: None):
    torch.manual_seed(0)
    stream = make_stream("digits5")
    net = build_network({"kind": "mlp", "hidden": [16]}, stream.shape, [t.classes for t in stream.tasks])
    method = make_method("blip", options)
    method.build(net, stream.tasks)
    for task in stream.tasks[:tasks]:
        data = stream.load(task)
        for _ in Training(method, net, task, data, Settings(lr=0.1, batch=32, epochs=2), seed=0).epochs():
            pass
        method.end_task(task, data)
        after(method, task, data)
    return method


@pytest.mark.parametrize("rules", ["strict", "released", "text", "algorithm1"])
def test_the_gain_that_is_shown_is_that_of_the_fisher(rules):
    """A second way: the Fisher of the task measured again, and the equation itself. Labels are exact, so both agree.

    Rules that do not move weights at a task's end are compared; released ones are with their snap turned off.
    """
    accumulated = {}

    def check(method, task, data):
        fisher = diagonal_fisher(
            method.net,
            data.train.batches(100),
            lambda x: method.logits(x, task),
            labels="exact",
            samples=len(data.train),
        )
        shown = method.pictures()
        for name in ("backbone.1.weight", "backbone.1.bias"):
            state = method.blip.state_dict()["tensors"][name]
            old = accumulated.get(name, torch.tensor(method.blip.prior * state["prior_scale"]))
            new, number = fisher[name], task.index + 1
            expected = information_gain(new, old, number, method.blip.rules.gain)
            assert torch.allclose(shown[f"{name}/gain"].float(), expected, atol=0.02, rtol=0.002)
            total = number * old + new
            accumulated[name] = total / (number + 1) if method.blip.rules.fisher == "mean" else total
            assert torch.equal(shown[f"{name}/bits"], method.blip.frozen_bits()[name])
            # the centre is where the parameter is, to within its interval
            bound = shown[f"{name}/bound"].item()
            centre = shown[f"{name}/centre"].double() * bound * 2.0**-method.bits
            radius = bound * 2.0 ** -shown[f"{name}/bits"].double()
            if rules != "algorithm1":  # which leaves parameters outside until the next clamp
                value = dict(method.net.named_parameters())[name].detach()
                assert ((value - centre).abs() <= radius * (1 + 1e-6)).all()
                assert torch.all((centre + radius * shown[f"{name}/offset"] / 127 - value).abs() <= radius * 0.5 / 126)

    learned({"rules": rules, "snap": False, "labels": "exact"}, after=check)


def test_snap_and_gain_can_be_chosen_apart_from_the_rules():
    snapped = learned({"snap": True}, tasks=1)
    for name, parameter in snapped.net.backbone.named_parameters():
        shown = snapped.pictures()
        unit = shown[f"backbone.{name}/bound"].double() * 2.0**-snapped.bits
        assert torch.equal(parameter.double(), shown[f"backbone.{name}/centre"].double() * unit)
    assert learned({"gain": "eq8"}, tasks=1).blip.rules.gain == "eq8"
    assert learned({}, tasks=1).blip.rules.gain == "appendix"
