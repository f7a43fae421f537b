"""What holds for all methods: a new one is tested by being registered."""

import dataclasses

import pytest
import torch
from torch import nn

from bitfreeze.blip.directions import DRIFT_FACTOR
from bitfreeze.lab.methods import make_method, methods
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.tasks import Split, TaskData
from bitfreeze.lab.training import Settings, Training, accuracy
from support import small_tasks

SETTINGS = Settings(lr=0.1, batch=32, epochs=2)
TASKS = 3


class Watched(Split):
    """A split that says when it is read."""

    def take(self, rows):
        reads.append(self.owner)
        return super().take(rows)

    def subset(self, rows):
        """What a method keeps in a buffer is its own: reading that again is no reading of the task's data."""
        reads.append(self.owner)
        return Split(self.x[rows], self.y[rows], self.mean, self.std)


reads: list[int] = []


def watched(split: Split, owner: int) -> Watched:
    result = Watched(split.x, split.y, split.mean, split.std)
    object.__setattr__(result, "owner", owner)
    return result


def prepare(name):
    torch.manual_seed(0)
    stream = make_stream("digits5")
    net = build_network({"kind": "mlp", "hidden": [32]}, stream.shape, [t.classes for t in stream.tasks])
    method = make_method(name, {})
    return stream, method, method.build(net, stream.tasks)


def learn(stream, method, net, task, data=None):
    data = stream.load(task) if data is None else data
    for _ in Training(method, net, task, data, SETTINGS, seed=task.index).epochs():
        pass
    method.end_task(task, data)


def weights(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("name", methods)
def test_learns_and_is_the_same_under_the_same_seed(name):
    results = []
    for _ in range(2):
        stream, method, net = prepare(name)
        for task in stream.tasks[:TASKS]:
            learn(stream, method, net, task)
        results.append(weights(net))
        assert accuracy(method, net, task, stream.load(task).test, 500) > 80
    assert same(*results)


@pytest.mark.parametrize("name", methods)
def test_never_reads_test_data_and_an_earlier_task_only_if_the_record_says_so(name):
    stream, method, net = prepare(name)
    for task in stream.tasks[:TASKS]:
        real = stream.load(task)
        marked = TaskData(watched(real.train, task.index), watched(real.valid, task.index), watched(real.test, 1000))
        reads.clear()
        learn(stream, method, net, task, marked)
        assert reads
        assert 1000 not in reads
        earlier = any(owner < task.index for owner in reads)
        assert earlier == (method.record.rereads and task.index > 0)


@pytest.mark.parametrize("name", methods)
def test_heads_of_later_tasks_do_not_move_and_earlier_ones_only_if_the_record_says_so(name):
    stream, method, net = prepare(name)
    first, second = stream.tasks[:2]
    learn(stream, method, net, first)
    before = weights(net)
    learn(stream, method, net, second)
    after = weights(net)
    moved = {k for k in after if "heads." in k and not torch.equal(before[k], after[k])}
    own, earlier = f"heads.{second.index}.", f"heads.{first.index}."
    assert any(own in k for k in moved)
    assert any(earlier in k for k in moved) == method.record.moves_old_heads
    assert all(own in k or earlier in k for k in moved)


@pytest.mark.parametrize("name", methods)
def test_weight_decay_leaves_the_heads_of_other_tasks_alone_or_is_refused(name):
    stream, _, net = prepare("ft")
    if name in ("hat", "vcl", "ucb", "gpm", "sgp", "wsn", "ncl"):
        with pytest.raises(ValueError, match="weight_decay"):
            make_method(name, {"weight_decay": 0.1})
        return
    method = make_method(name, {"weight_decay": 0.1})
    net = method.build(net, stream.tasks)
    learn(stream, method, net, stream.tasks[0])
    before = weights(net)
    learn(stream, method, net, stream.tasks[1])
    moved = {k for k, value in weights(net).items() if "heads." in k and not torch.equal(before[k], value)}
    assert any("heads.1." in k for k in moved)
    assert method.record.moves_old_heads or all("heads.1." in k for k in moved)


@pytest.mark.parametrize("name", methods)
def test_tasks_may_have_unlike_numbers_of_classes(name):
    torch.manual_seed(0)
    digits, classes = make_stream("digits5"), (2, 5, 3)
    tasks = tuple(dataclasses.replace(digits.tasks[k], classes=count) for k, count in enumerate(classes))
    method = make_method(name, {})
    net = method.build(build_network({"kind": "mlp", "hidden": [8]}, digits.shape, classes), tasks)
    for task in tasks:
        train = digits.load(digits.tasks[task.index]).train.subset(torch.arange(60))
        split = Split(train.x, torch.arange(60) % task.classes, train.mean, train.std)
        learn(digits, method, net, task, TaskData(split, split, split))
    x, _ = split.take(torch.arange(4))
    assert [list(method.logits(x, task).shape) for task in tasks] == [[4, count] for count in classes]


@pytest.mark.parametrize("name", methods)
def test_state_goes_into_a_new_object_and_training_goes_on_alike(name):
    stream, method, net = prepare(name)
    first, second = stream.tasks[:2]
    learn(stream, method, net, first)
    saved, state, random = weights(net), method.state_dict(), torch.get_rng_state()
    learn(stream, method, net, second)
    expected = weights(net)
    stream, other, other_net = prepare(name)
    if other.record.rereads:
        other.recall(first, stream.load(first))
    other_net.load_state_dict(saved)
    other.load_state_dict(state)
    torch.set_rng_state(random)
    learn(stream, other, other_net, second)
    assert same(weights(other_net), expected)


def test_fixed_backbone_does_not_forget():
    stream, method, net = prepare("ft_fix")
    learn(stream, method, net, stream.tasks[0])
    before = weights(net.backbone)
    for task in stream.tasks[1:3]:
        learn(stream, method, net, task)
    assert same(weights(net.backbone), before)


def test_fixed_backbone_keeps_its_running_statistics():
    def normalised():
        layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU())
        return MultiHead(layers, 12, [task.classes for task in small_tasks.TASKS])

    method = small_tasks.prepare("ft_fix", normalised)
    small_tasks.learn(method, small_tasks.TASKS[0])
    before = weights(method.net.backbone)
    assert before["2.running_mean"].any()
    small_tasks.learn(method, small_tasks.TASKS[1])
    assert same(weights(method.net.backbone), before)


@pytest.mark.parametrize("name", ["er", "blip_er"])
def test_replay_buffer_keeps_equal_shares_with_right_labels(name):
    stream, method, net = prepare(name)
    method.kept.size = 90
    for task in stream.tasks[:TASKS]:
        learn(stream, method, net, task)
    assert [len(split) for split in method.kept.kept.values()] == [30, 30, 30]
    for index, split in method.kept.kept.items():
        train = stream.load(stream.tasks[index]).train
        known = {bytes(x.flatten().tolist()): int(y) for x, y in zip(train.x, train.y, strict=True)}
        assert all(known[bytes(x.flatten().tolist())] == y for x, y in zip(split.x, split.y.tolist(), strict=True))


@pytest.mark.parametrize("rules", ["strict", "released", "text", "algorithm1", "text_straight_through"])
def test_blip_keeps_to_its_intervals_under_all_rules(rules):
    torch.manual_seed(0)
    stream = make_stream("digits5")
    net = build_network({"kind": "mlp", "hidden": [16]}, stream.shape, [t.classes for t in stream.tasks])
    method = make_method("blip", {"rules": rules})
    method.build(net, stream.tasks)
    steps = []

    def clamp_and_look(task):
        type(method).after_step(method, task)
        steps.append(task)
        for name, (low, high) in method.blip.intervals().items():
            value = parameters[name].detach()
            slack = 1e-6 if rules == "strict" else 1e-6 + method.blip.bound * 2.0**-method.bits  # rounded on the way
            assert ((low - slack <= value) & (value <= high + slack)).all(), name

    parameters, method.after_step = dict(net.named_parameters()), clamp_and_look
    for task in stream.tasks[:TASKS]:
        learn(stream, method, net, task)
    assert len(steps) > 50
    assert method.blip.tasks == TASKS
    assert method.blip.capacity() > 0


def test_blip_keeps_to_its_tolerance_along_directions():
    """All coordinates at their edges cost the tolerance, so no task costs more, by the same quadratic estimate."""
    torch.manual_seed(0)
    stream, tolerance = make_stream("digits5"), 1e-3
    net = build_network({"kind": "mlp", "hidden": [16]}, stream.shape, [t.classes for t in stream.tasks])
    method = make_method("blip", {"tolerance": tolerance})
    method.build(net, stream.tasks)
    learn(stream, method, net, stream.tasks[0])
    for task in stream.tasks[1:TASKS]:
        learn(stream, method, net, task)
        assert 0 < method.last_report.drift <= DRIFT_FACTOR * tolerance * 1.001
        assert method.last_report.at_edge > 0
    assert method.blip.capacity() > 0


def test_unknown_options_and_rules_are_refused():
    with pytest.raises(ValueError, match="there is no setting of method 'budge': did you mean budget"):
        make_method("blip", {"budge": 1})
    with pytest.raises(ValueError, match=r"method.rules must be directions, strict, .*, got 'loose'"):
        make_method("blip", {"rules": "loose"})


def test_options_are_plain_values():
    """They must go into a TOML file."""
    for method in methods.values():
        for option in dataclasses.fields(method):
            assert isinstance(option.default, bool | int | float | str | None), option.name
