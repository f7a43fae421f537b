"""Events on disk: the lines that earlier versions wrote are read, and the same lines are written."""

import json
from dataclasses import fields, replace
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.lab.runs.events import (
    AccuracyResult,
    Continued,
    EpochDone,
    Evaluation,
    Event,
    Finished,
    LossResult,
    RandomPlay,
    ScoreResult,
    Started,
    TaskDone,
    TaskPlayed,
    TaskRead,
    TaskTested,
    Unreadable,
    UpdateDone,
    ending_of,
    result_of,
)
from bitfreeze.lab.runs.parsing import from_json, values_of

# as earlier versions wrote them, at least one of each
LINES = {
    '{"n": 0, "event": "started", "tasks": ["a", "b"], "learned": 0, "epochs_cap": 200}': Started(
        n=0, tasks=["a", "b"], learned=0, epochs_cap=200
    ),
    '{"n": 0, "event": "started", "tasks": ["a"], "learned": 1, "updates_cap": 6}': Started(
        n=0, tasks=["a"], learned=1, updates_cap=6
    ),
    '{"n": 1, "event": "epoch", "task": 0, "epoch": 1, "lr": 0.05, "train_loss": 0.5, "valid_loss": 1, '
    '"seconds": 4.5}': EpochDone(n=1, task=0, epoch=1, lr=0.05, train_loss=0.5, valid_loss=1, seconds=4.5),
    '{"n": 1, "event": "epoch", "task": 0, "epoch": 1, "lr": 0.05, "train_loss": 0.5, "valid_loss": 0.25}': EpochDone(
        n=1, task=0, epoch=1, lr=0.05, train_loss=0.5, valid_loss=0.25
    ),
    '{"n": 2, "event": "update", "task": 0, "update": 3, "steps": 48, "lr": 0.001, "loss": 1.5, "entropy": 0.5, '
    '"games": 0, "score": null, "seconds": 2.5}': UpdateDone(
        n=2, task=0, update=3, steps=48, lr=0.001, loss=1.5, entropy=0.5, games=0, score=None, seconds=2.5
    ),
    '{"n": 3, "event": "random", "task": 0, "score": 9.5, "scores": [9.0, 10.0]}': RandomPlay(
        n=3, task=0, score=9.5, scores=[9.0, 10.0]
    ),
    '{"n": 4, "event": "evaluation", "task": 1, "steps": 192, "scores": [9.0, 10.0], "seconds": 0.5}': Evaluation(
        n=4, task=1, steps=192, scores=[9.0, 10.0], seconds=0.5
    ),
    '{"n": 5, "event": "continued", "task": 0, "update": 1, "note": "all begin anew"}': Continued(
        n=5, task=0, update=1, note="all begin anew"
    ),
    '{"n": 6, "event": "task", "task": 1, "accuracy": [90.0, 80.5], "extra_bytes": 10, "buffer_bytes": 0, '
    '"capacity": 0.25, "prior": 1e-09}': TaskTested(
        n=6, task=1, accuracy=[90.0, 80.5], extra_bytes=10, buffer_bytes=0, report={"capacity": 0.25, "prior": 1e-9}
    ),
    '{"n": 6, "event": "task", "link": "00ff", "task": 0, "accuracy": [90.0], "extra_bytes": 10, "buffer_bytes": 0, '
    '"accuracy_with_task": [95.5], "files": {"bits/task1.npz": "ab"}, "capacity": 0.25}': TaskTested(
        n=6, link="00ff", task=0, accuracy=[90.0], extra_bytes=10, buffer_bytes=0, accuracy_with_task=[95.5],
        files={"bits/task1.npz": "ab"}, report={"capacity": 0.25},
    ),
    '{"n": 6, "event": "task", "task": 0, "score": [9.5], "games": [[9.0, 10.0]], "learned": true, '
    '"evaluation_seconds": 0.5, "extra_bytes": 10, "buffer_bytes": 0}': TaskPlayed(
        n=6, task=0, score=[9.5], games=[[9.0, 10.0]], learned=True, evaluation_seconds=0.5, extra_bytes=10,
        buffer_bytes=0,
    ),
    '{"n": 6, "event": "task", "task": 0, "loss": [1.5], "extra_bytes": 10, "buffer_bytes": 0}': TaskRead(
        n=6, task=0, loss=[1.5], extra_bytes=10, buffer_bytes=0
    ),
    '{"n": 7, "event": "finished", "final": [1.75], "after_learning": [1.5], "before": [1.5], "model_bytes": 100, '
    '"extra_bytes": 10, "buffer_bytes": 0, "seconds": 60.5}': LossResult(
        n=7, final=[1.75], after_learning=[1.5], before=[1.5], model_bytes=100, extra_bytes=10, buffer_bytes=0,
        seconds=60.5,
    ),
    '{"n": 7, "event": "finished", "acc": 90.5, "bwt": -1.0, "bwt_T": -0.5, "forgetting": 1.0, "learning_acc": 91.0, '
    '"model_bytes": 100, "extra_bytes": 10, "buffer_bytes": 0, "seconds": 60.5}': AccuracyResult(
        n=7, acc=90.5, bwt=-1.0, bwt_T=-0.5, forgetting=1.0, learning_acc=91.0, model_bytes=100, extra_bytes=10,
        buffer_bytes=0, seconds=60.5,
    ),
    '{"n": 7, "event": "finished", "link": "00ff", "acc": 90.5, "bwt": -1.0, "bwt_T": -0.5, "forgetting": 1.0, '
    '"learning_acc": 91.0, "model_bytes": 100, "extra_bytes": 10, "buffer_bytes": 0, "seconds": 60.5, '
    '"acc_without_task": 80.5}': AccuracyResult(
        n=7, link="00ff", acc=90.5, bwt=-1.0, bwt_T=-0.5, forgetting=1.0, learning_acc=91.0, model_bytes=100,
        extra_bytes=10, buffer_bytes=0, seconds=60.5, acc_without_task=80.5,
    ),
    '{"n": 7, "event": "finished", "final": [9.5], "after_learning": [9.5], "random": [2.0], "best": [9.5], '
    '"learned": [true], "kept": null, "evaluation_seconds": 3.5, "model_bytes": 100, "extra_bytes": 10, '
    '"buffer_bytes": 0, "seconds": 60.5}': ScoreResult(
        n=7, final=[9.5], after_learning=[9.5], random=[2.0], best=[9.5], learned=[True], kept=None,
        evaluation_seconds=3.5, model_bytes=100, extra_bytes=10, buffer_bytes=0, seconds=60.5,
    ),
}  # fmt: skip
CLASSES = {type(event) for event in LINES.values()}


def parse_line(line):
    return from_json(values_of(line))


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_an_earlier_version_is_read_and_written_again_byte_for_byte(line):
    event = parse_line(line.encode())
    assert event == LINES[line]
    assert event.to_line().decode() == line + "\n"


def values(hint):
    """Values that JSON keeps as they are."""
    texts, numbers = st.text(max_size=5), st.floats(allow_nan=False)
    plain = {int: st.integers(), float: numbers, str: texts, bool: st.booleans(), int | None: st.none() | st.integers()}
    lists = {list[str]: texts, list[float]: numbers, list[bool]: st.booleans(), list[list[float]]: st.lists(numbers)}
    others = {
        float | None: st.none() | numbers,
        str | None: st.none() | texts,
        list[float] | None: st.none() | st.lists(numbers, max_size=3),
        dict[str, str] | None: st.none() | st.dictionaries(texts, texts, max_size=3),
        dict[str, float]: st.dictionaries(texts.map("own {}".format), numbers, max_size=3),
    }
    return {**plain, **others, **{hint: st.lists(entries, max_size=3) for hint, entries in lists.items()}}[hint]


@pytest.mark.parametrize("kind", sorted(CLASSES, key=lambda kind: kind.__name__))
@given(data=st.data())
def test_every_event_comes_back_from_its_line(kind, data):
    hints = get_type_hints(kind)
    event = kind(**{field.name: data.draw(values(hints[field.name])) for field in fields(kind)})
    line = event.to_line()
    assert parse_line(line) == event
    assert list(json.loads(line))[:2] == ["n", "event"]


def classes_below(kind):
    return {one for child in kind.__subclasses__() for one in (child, *classes_below(child))}


def test_every_class_has_a_line_here():
    assert classes_below(Event) - CLASSES == {Unreadable, TaskDone, Finished}


def test_fields_of_later_versions_are_ignored():
    line = '{"n": 5, "event": "continued", "task": 0, "update": 1, "note": "all begin anew"'
    assert parse_line(f'{line}, "later": 1}}'.encode()) == parse_line(f"{line}}}".encode())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"n": 3, "event": "later", "task": 0}', "this version has no event 'later'"),
        ('{"n": 3, "event": ["epoch"]}', "this version has no event"),
        ('{"n": 3, "event": "random", "task": 0}', "the event 'random' lacks a valid score and scores"),
        ('{"n": 3, "event": "random", "task": 0, "score": "high", "scores": []}', "lacks a valid score"),
        ('{"n": 3, "event": "evaluation", "task": 0, "steps": 1, "scores": 2.0, "seconds": 1}', "a valid scores"),
    ],
)
def test_a_line_that_is_no_event_of_this_version_keeps_its_number_and_says_why(line, reason):
    event = parse_line(line.encode())
    assert isinstance(event, Unreadable)
    assert event.n == 3
    assert reason in event.reason


def test_a_damaged_result_ends_a_run_without_a_result():
    whole = LINES[next(line for line in LINES if '"best"' in line)]
    damaged = parse_line(whole.to_line().replace(b'"best"', b'"worst"'))
    assert (ending_of([whole]), result_of([whole])) == (whole, whole)
    assert "lacks a valid best" in ending_of([damaged]).reason
    assert result_of([damaged]) is None
    assert ending_of([]) is None
    assert ending_of([replace(whole), parse_line(b'{"n": 8, "event": "later"}')]) is None
