"""The labels of a stream in a scenario: those of each task by itself, or those of the whole stream."""

from dataclasses import replace
from itertools import accumulate
from typing import get_args

from ..scenario import Scenario
from ..tasks import Split, Task, TaskData
from .stream import Stream


def in_scenario(stream: Stream, scenario: Scenario) -> Stream:
    """The same stream with the labels of a scenario. In "class" those of a task follow those of the task before it."""
    if scenario not in get_args(Scenario):
        raise ValueError(f"stream.scenario must be {', '.join(get_args(Scenario)[:-1])} or class, got {scenario!r}")
    if scenario == "domain":
        _require_same_classes(stream)
    if scenario != "class":
        return stream
    starts = accumulate((task.classes for task in stream.tasks), initial=0)
    tasks = tuple(replace(task, first_label=first) for task, first in zip(stream.tasks, starts, strict=False))

    def load(task: Task) -> TaskData:
        data = stream.load(stream.tasks[task.index])
        train = _shifted(data.train, task)
        valid = train if data.valid is data.train else _shifted(data.valid, task)
        return TaskData(train, valid, _shifted(data.test, task))

    return replace(stream, tasks=tasks, load=load)


def _shifted(split: Split, task: Task) -> Split:
    return replace(split, y=split.y + task.first_label)


def _require_same_classes(stream: Stream) -> None:
    counts = sorted({task.classes for task in stream.tasks})
    if len(counts) > 1:
        raise ValueError(
            f"stream.scenario=domain needs tasks with the same number of classes, and those of {stream.name} have "
            f"{' and '.join(map(str, counts))}; use stream.scenario=class or task"
        )
