"""Norms by batch with fixed statistics: what they compute, and the Fisher that they allow."""

import pytest
import torch
import torch.nn.functional as F

from bitfreeze import diagonal_fisher
from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.nets.batch_statistics import fixed_statistics, norms_by_batch
from bitfreeze.lab.tasks import Split, Task, TaskData

GPM = {
    "kind": "alexnet", "channels": [3, 4, 5], "units": [6, 7], "dropout": [0.0, 0.0], "norm": True, "bias": False,
}  # fmt: skip
SHAPE = (1, 20, 20)


def network():
    torch.manual_seed(0)
    return build_network(GPM, SHAPE, [3, 2])


def test_statistics_are_those_of_the_samples_for_any_later_batch():
    net, x = network(), torch.randn(12, *SHAPE)
    expected = net.eval()(x, 1)
    with fixed_statistics(net, x, 1):
        torch.testing.assert_close(net(x, 1), expected)
        torch.testing.assert_close(torch.cat([net(row[None], 1) for row in x]), expected)
    assert not torch.allclose(net(x[:2], 1), expected[:2])


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_behind(training):
    net, x = network().train(training), torch.randn(12, *SHAPE)
    before = net(x, 0)
    with fixed_statistics(net, x, 0):
        assert net.training == training
    with pytest.raises(RuntimeError, match="channels"), fixed_statistics(net, torch.randn(12, 2, 20, 20), 0):
        pass
    assert net.training == training
    assert torch.equal(net(x, 0), before)
    assert all(norm.running_mean is None and not norm._forward_pre_hooks for norm in norms_by_batch(net))
    assert set(net.state_dict()) == set(dict(net.named_parameters()))


def test_the_fisher_is_that_of_single_samples():
    net, x = network().eval(), torch.randn(9, *SHAPE)
    y = torch.randint(2, (9,))
    with fixed_statistics(net, x, 1):
        found = diagonal_fisher(net, [(x, y)], lambda x: net(x, 1), labels="true")
        parameters = dict(net.named_parameters())
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for row, label in zip(x, y, strict=True):
            loss = F.cross_entropy(net(row[None], 1), label[None])
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for name, gradient in zip(parameters, gradients, strict=True):
                total[name] += 0 if gradient is None else gradient**2 / len(x)
    for name, fisher in found.items():
        torch.testing.assert_close(fisher, total[name], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("name", ["blip", "ewc", "imm"])
def test_methods_measure_a_network_that_normalises_by_batch(name):
    net, method = network(), make_method(name, {})
    x = torch.randint(256, (40, *SHAPE), dtype=torch.uint8)
    split = Split(x, torch.arange(40) % 3, (0.5,), (0.3,))
    task = Task(0, "first", 3)
    method.build(net, (task, Task(1, "second", 2)))
    method.end_task(task, TaskData(split, split, split))
    assert method.extra_bytes() > 0
    assert all(norm.running_mean is None for norm in norms_by_batch(net))
