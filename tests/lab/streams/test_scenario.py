"""Scenarios of streams: which labels their samples have."""

from itertools import pairwise

import pytest
import torch

from bitfreeze.lab.data import load_digits
from bitfreeze.lab.streams import Stream, make_stream
from bitfreeze.lab.streams.scenario import in_scenario
from bitfreeze.lab.tasks import Split, Task, TaskData


def test_the_classes_of_split_digits_are_the_digits():
    stream = make_stream("digits5", scenario="class")
    images, labels = load_digits()
    digit = {bytes(image.flatten().tolist()): int(label) for image, label in zip(images * 15, labels, strict=True)}
    for task in stream.tasks:
        data = stream.load(task)
        assert data.valid is data.train
        assert data.train.y.unique().tolist() == [task.first_label, task.first_label + 1]
        for split in (data.train, data.test):
            assert [digit[bytes(x.flatten().tolist())] for x in split.x] == split.y.tolist()


def made(classes, held_out=False):
    """A stream whose tasks have these numbers of classes, a sample for each class."""

    def load(task):
        assert task.first_label == 0
        split = Split(torch.zeros(task.classes, 1, 2, 2, dtype=torch.uint8), torch.arange(task.classes), (0.0,), (1.0,))
        return TaskData(split, split.subset(torch.tensor([1])) if held_out else split, split)

    return Stream("made", (1, 2, 2), tuple(Task(k, str(k), count) for k, count in enumerate(classes)), load)


@pytest.mark.parametrize("held_out", [False, True])
def test_labels_of_a_task_follow_those_of_the_task_before_it(held_out):
    stream = in_scenario(made((2, 5, 3), held_out), "class")
    data = [stream.load(task) for task in stream.tasks]
    assert torch.cat([one.train.y for one in data]).tolist() == list(range(10))
    assert torch.cat([one.test.y for one in data]).tolist() == list(range(10))
    assert [task.first_label for task in stream.tasks] == [0, 2, 7]
    assert all(after.first_label == before.first_label + before.classes for before, after in pairwise(stream.tasks))
    if held_out:
        assert [one.valid.y.tolist() for one in data] == [[1], [3], [8]]


def test_labels_of_other_scenarios_start_at_0():
    plain = made((3, 3))
    for scenario in ("task", "domain"):
        assert in_scenario(plain, scenario) is plain


def test_tuning_tests_on_the_training_samples_of_the_whole_stream():
    plain, tuned = (make_stream("digits5", scenario="class", tuning=tuning) for tuning in (False, True))
    for task in plain.tasks:
        whole, parts = plain.load(task).train.y, tuned.load(task)
        assert torch.cat([parts.train.y, parts.test.y]).sort().values.tolist() == whole.sort().values.tolist()


def test_one_head_for_tasks_of_unlike_size_is_refused():
    with pytest.raises(ValueError, match=r"same number of classes, and those of alt_cifar have 2 and 20; use"):
        make_stream("alt_cifar", scenario="domain")
    assert make_stream("alt_cifar", scenario="class").tasks[-1].first_label == 90  # of 110


def test_an_unknown_scenario_is_refused():
    with pytest.raises(ValueError, match=r"stream.scenario must be task, domain or class, got 'instance'"):
        make_stream("digits5", scenario="instance")
