"""Accuracy with and without the task, sample by sample."""

from itertools import chain

import pytest
import torch

from bitfreeze.lab.methods import make_method, methods
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.training import Settings, Training, accuracies, accuracy

SETTINGS = Settings(lr=0.1, batch=32, epochs=1)
LEARNED = 3


def learned(name, scenario):
    torch.manual_seed(0)
    stream = make_stream("digits5", scenario=scenario)
    classes = [task.classes for task in stream.tasks]
    method = make_method(name, {})
    net = method.build(build_network({"kind": "mlp", "hidden": [8]}, stream.shape, classes, scenario), stream.tasks)
    for task in stream.tasks[:LEARNED]:
        data = stream.load(task)
        for _ in Training(method, net, task, data, SETTINGS, seed=0).epochs():
            pass
        method.end_task(task, data)
    net.eval()
    return stream, method, net


def largest(scores, allowed):
    return max(allowed, key=lambda k: scores[k])


@pytest.mark.parametrize("name", ["ft", "er", "blip", "ucb", "vcl"])
def test_one_head_that_grows(name):
    stream, method, net = learned(name, "class")
    differ = False
    for task in stream.tasks[:LEARNED]:
        test = stream.load(task).test
        told = untold = 0
        with torch.no_grad():
            scores = method.logits(test.take(slice(None))[0], task).tolist()
        for row, label in zip(scores, test.y.tolist(), strict=True):
            assert len(row) == 2 * LEARNED
            told += largest(row, [2 * task.index, 2 * task.index + 1]) == label
            untold += largest(row, range(2 * LEARNED)) == label
        found = accuracies(method, net, task, test, 50, stream.tasks[:LEARNED])
        assert (found.told, found.untold) == (100 * told / len(test), 100 * untold / len(test))
        assert accuracy(method, net, task, test, 50) == found.told
        differ |= found.untold < found.told
    assert differ


@pytest.mark.parametrize("name", ["ft", "lwf", "joint"])
def test_a_head_for_each_task(name):
    stream, method, net = learned(name, "task")
    seen = stream.tasks[:LEARNED]
    for task in seen:
        test = stream.load(task).test
        told = untold = 0
        with torch.no_grad():
            heads = [method.logits(test.take(slice(None))[0], other).tolist() for other in seen]
        for *rows, label in zip(*heads, test.y.tolist(), strict=True):
            told += largest(rows[task.index], [0, 1]) == label
            untold += largest(list(chain(*rows)), range(2 * LEARNED)) == 2 * task.index + label
        found = accuracies(method, net, task, test, 50, seen)
        assert (found.told, found.untold) == (100 * told / len(test), 100 * untold / len(test))
        assert accuracy(method, net, task, test, 50) == found.told


def test_one_head_for_all_has_one_accuracy():
    stream, method, net = learned("ft", "domain")
    task, test = stream.tasks[0], stream.load(stream.tasks[0]).test
    right = sum(net(x, 2).argmax().item() == y.item() for x, y in test.batches(1))
    found = accuracies(method, net, task, test, 50, stream.tasks[:LEARNED])
    assert (found.told, found.untold) == (100 * right / len(test), None)


@pytest.mark.parametrize("name", methods)
def test_scores_of_all_tasks_hold_those_of_each_or_there_are_none(name):
    stream, method, _ = learned(name, "task")
    seen = stream.tasks[:LEARNED]
    for task in seen:
        x, _ = stream.load(task).test.take(slice(0, 20))
        with torch.no_grad():
            every = method.logits_of_all(x, task, seen)
            assert every is not None or name not in ("ft", "ewc", "blip", "er", "joint")
            if every is not None:
                assert "class" in method.record.scenarios
                assert torch.equal(every[:, 2 * task.index : 2 * task.index + 2], method.logits(x, task))
