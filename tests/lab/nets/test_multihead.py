"""Heads: one for each task, one for all, one that grows."""

import pytest
import torch
from torch import nn

from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.nets.bayesian import BayesianMultiHead

CLASSES = (2, 5, 3)
X = torch.randn(7, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def network(scenario, classes=CLASSES, kind="mlp"):
    torch.manual_seed(0)
    return build_network({"kind": kind, "hidden": [6]}, (1, 4, 4), classes, scenario)


def by_hand(net, heads):
    """Scores of these heads, from the weights alone."""
    first = net.backbone[1]
    features = (X.flatten(1) @ first.weight.T + first.bias).clamp(min=0)
    return torch.cat([features @ net.heads[k].weight.T + net.heads[k].bias for k in heads], 1)


def test_a_growing_head_scores_all_classes_so_far_whichever_task_is_given():
    net = network("class")
    for seen in (1, 2, 3):
        net.seen = seen
        expected = by_hand(net, range(seen))
        assert expected.shape == (7, sum(CLASSES[:seen]))
        for task in range(3):
            torch.testing.assert_close(net(X, task), expected)


def test_one_head_serves_all_tasks():
    net = network("domain", (5, 5, 5))
    assert len(net.heads) == 1
    for task in range(3):
        torch.testing.assert_close(net(X, task), by_hand(net, [0]))


def test_each_task_has_its_own_head_by_default():
    net = network("task")
    assert MultiHead.scenario == "task"
    for task, count in enumerate(CLASSES):
        net.seen = 3  # which nothing looks at
        torch.testing.assert_close(net(X, task), by_hand(net, [task]))
        assert net(X, task).shape == (7, count)


def names(net, parameters):
    found = {id(parameter) for parameter in parameters}
    return [name for name, parameter in net.named_parameters() if id(parameter) in found]


def heads(*numbers):
    return [f"heads.{k}.{part}" for k in numbers for part in ("weight", "bias")]


@pytest.mark.parametrize(
    ("scenario", "new", "unused", "shared"),
    [
        ("task", heads(1), heads(0, 2), []),
        ("domain", [], [], heads(0)),
        ("class", heads(1), heads(2), heads(0, 1, 2)),
    ],
)
def test_what_the_second_task_has_for_itself_leaves_alone_and_shares(scenario, new, unused, shared):
    net = network(scenario, (5, 5, 5))
    net.seen = 2
    assert names(net, net.of_task(1)) == new
    assert names(net, net.unused(1)) == unused
    together = [parameter for module in net.shared() for parameter in module.parameters()]
    assert names(net, together) == ["backbone.1.weight", "backbone.1.bias", *shared]


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_the_bayesian_twin_has_the_same_heads(scenario):
    net = network(scenario, (5, 5, 5))
    twin = BayesianMultiHead(net, -3.0, torch.exp)
    net.seen = twin.seen = 2
    assert torch.equal(twin(X, 1), net(X, 1))
    assert twin(X, 1, 4).shape == (4, 7, 10 if scenario == "class" else 5)
    used = {"task": heads(1), "domain": heads(0), "class": heads(0, 1)}[scenario]
    assert [name for name in twin.gaussians(1) if name.startswith("heads.")] == used


def test_features_that_differ_between_tasks_need_the_task():
    settings = {"kind": "resnet18", "width": 0.1, "statistics": "per_task"}
    build_network(settings, (3, 8, 8), [2, 2])
    with pytest.raises(ValueError, match=r"stream\.scenario=class, and those of this network differ; use"):
        build_network(settings, (3, 8, 8), [2, 2], "class")


def test_a_perceptron_without_biases_is_gpms():
    net = build_network({"kind": "mlp", "hidden": [100, 100], "bias": False}, (1, 28, 28), [10] * 10, "domain")
    assert [tuple(p.shape) for p in net.parameters()] == [(100, 784), (100, 100), (10, 100)]
    x = torch.randn(3, 1, 28, 28)
    h = x.flatten(1)
    for layer in (net.backbone[1], net.backbone[3]):
        h = (h @ layer.weight.T).clamp(min=0)
    torch.testing.assert_close(net(x, 4), h @ net.heads[0].weight.T)
    assert not any(isinstance(m, nn.Linear) and m.bias is not None for m in net.modules())
