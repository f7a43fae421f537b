"""The events of a run: a class for each, and how each is written to and read from a line of ``events.jsonl``.

A line holds the event's number, its name and its fields in the order of its class. A field that is None by default is
left out of the line where it is None; runs of older versions lack some of these. Two kinds of training write events of
the same name with other fields, so a line is read as the class whose fields it has. Any other field is ignored, except
in the event of a task, where it is a figure that the method reports.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from types import UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that a run notes. ``n`` counts events from 0, ``link`` ties the line to the one before it; the log of
    the run sets both (event_log.py)."""

    name: ClassVar[str]
    n: int = 0
    link: str | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The event as one table of plain values, in the order of its line."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        absent = [each.name for each in fields(self) if each.default is None and values[each.name] is None]
        number, report = values.pop("n"), values.pop("report", {})
        kept = {key: value for key, value in values.items() if key not in absent}
        return {"n": number, "event": self.name, **kept, **report}

    def to_line(self) -> bytes:
        return json.dumps(self.to_json()).encode() + b"\n"


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """A run begins, or goes on after ``learned`` tasks."""

    name = "started"
    tasks: list[str] = field(default_factory=list)  # their names
    learned: int
    epochs_cap: int | None = None
    updates_cap: int | None = None
    config: str | None = None  # SHA-256 of config.toml

    @property
    def rounds_cap(self) -> int:
        """The largest number of epochs or updates that a task may take."""
        return self.epochs_cap or self.updates_cap or 1


@dataclass(frozen=True, kw_only=True)
class EpochDone(Event):
    name = "epoch"
    task: int
    epoch: int
    lr: float
    train_loss: float
    valid_loss: float
    seconds: float | None = None  # since the run began

    @property
    def number(self) -> int:
        return self.epoch

    @property
    def loss(self) -> float:
        return self.train_loss

    @property
    def words(self) -> str:
        return f"epoch {self.epoch}  loss {self.loss:.4f}  validation {self.valid_loss:.4f}  lr {self.lr:.2g}"


@dataclass(frozen=True, kw_only=True)
class UpdateDone(Event):
    """PPO has made one update. ``games`` ended since the last one, and ``score`` is their mean score."""

    name = "update"
    valid_loss: ClassVar[None] = None  # PPO validates nothing
    task: int
    update: int
    steps: int
    lr: float
    loss: float
    entropy: float
    games: int
    score: float | None
    seconds: float | None = None  # since the run began

    @property
    def number(self) -> int:
        return self.update

    @property
    def words(self) -> str:
        score = "" if self.score is None else f"  score {self.score:.1f}"
        return f"{self.steps:,} steps{score}  entropy {self.entropy:.3f}  lr {self.lr:.2g}"


@dataclass(frozen=True, kw_only=True)
class RandomPlay(Event):
    """The scores of games with random actions, and their mean."""

    name = "random"
    task: int
    score: float
    scores: list[float]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Event):
    """The mean score of each task so far, after ``steps`` of the task that is trained."""

    name = "evaluation"
    task: int
    steps: int
    scores: list[float]
    seconds: float  # that the evaluation took


@dataclass(frozen=True, kw_only=True)
class Continued(Event):
    """A run goes on in the middle of a task from a state that could not be saved whole."""

    name = "continued"
    task: int
    update: int
    note: str


@dataclass(frozen=True, kw_only=True)
class TaskTested(Event):
    """A task is learned. ``accuracy`` is the next row of the matrix, ``report`` what the method says of itself.

    ``accuracy`` is without the task where one head grows, else with it. The other row is there where one pass gives
    both.
    """

    name = "task"
    matrix: ClassVar[str] = "accuracy"
    task: int
    accuracy: list[float]
    extra_bytes: int
    buffer_bytes: int
    accuracy_with_task: list[float] | None = None
    accuracy_without_task: list[float] | None = None
    files: dict[str, str] | None = None  # SHA-256 of each file that was kept of the task
    report: dict[str, float] = field(default_factory=dict)

    @property
    def row(self) -> list[float]:
        return self.accuracy


@dataclass(frozen=True, kw_only=True)
class TaskPlayed(Event):
    """A task of games is learned. ``score`` is the next row of the matrix: means of the scores in ``games``."""

    name = "task"
    matrix: ClassVar[str] = "score"
    task: int
    score: list[float]
    games: list[list[float]]
    learned: bool  # whether the task is played better than at random
    evaluation_seconds: float
    extra_bytes: int
    buffer_bytes: int
    files: dict[str, str] | None = None  # SHA-256 of each file that was kept of the task
    report: dict[str, float] = field(default_factory=dict)

    @property
    def row(self) -> list[float]:
        return self.score


@dataclass(frozen=True, kw_only=True)
class TaskRead(Event):
    """A task of text is learned. ``loss`` is the next row of the matrix, in nats a token."""

    name = "task"
    matrix: ClassVar[str] = "loss"
    task: int
    loss: list[float]
    extra_bytes: int
    buffer_bytes: int
    files: dict[str, str] | None = None  # SHA-256 of each file that was kept of the task
    report: dict[str, float] = field(default_factory=dict)

    @property
    def row(self) -> list[float]:
        return self.loss


@dataclass(frozen=True, kw_only=True)
class AccuracyResult(Event):
    """A supervised run has ended. Accuracies are in percent; metrics.py defines each of them."""

    name = "finished"
    acc: float
    bwt: float
    bwt_T: float
    forgetting: float
    learning_acc: float
    model_bytes: int
    extra_bytes: int
    buffer_bytes: int
    seconds: float
    acc_with_task: float | None = None  # where acc is without it
    acc_without_task: float | None = None  # where acc is with it, and one pass gives both


@dataclass(frozen=True, kw_only=True)
class ScoreResult(Event):
    """A run of games has ended. Each list has one mean score, or one answer, for each task."""

    name = "finished"
    final: list[float]
    after_learning: list[float]
    random: list[float]
    best: list[float]
    learned: list[bool]
    kept: float | None
    evaluation_seconds: float
    model_bytes: int
    extra_bytes: int
    buffer_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LossResult(Event):
    """A run of texts has ended. Each list has a loss in nats a token for each task."""

    name = "finished"
    final: list[float]
    after_learning: list[float]
    before: list[float]  # of the pretrained network; empty where the first task was not known to it
    model_bytes: int
    extra_bytes: int
    buffer_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Unreadable(Event):
    """A line that has a number and a name, but is no event of this version; ``reason`` says why."""

    name = "unreadable"
    event: str  # the name in the line
    reason: str


Round = EpochDone | UpdateDone
TaskDone = TaskTested | TaskPlayed | TaskRead
Finished = AccuracyResult | ScoreResult | LossResult

_CLASSES: tuple[type[Event], ...] = (
    Started, EpochDone, UpdateDone, RandomPlay, Evaluation, Continued, TaskTested, TaskPlayed, TaskRead,
    AccuracyResult, ScoreResult, LossResult,
)  # fmt: skip


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value of JSON can stand for a field with this type, its entries included."""
    if isinstance(hint, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(entry, get_args(hint)[0]) for entry in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(entry, get_args(hint)[1]) for entry in value.values())
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


_FIELDS = {
    of: {each.name: get_type_hints(of)[each.name] for each in fields(of) if each.name != "report"} for of in _CLASSES
}
_REQUIRED = {
    of: [each.name for each in fields(of) if each.default is MISSING and each.default_factory is MISSING]
    for of in _CLASSES
}


def parse_line(line: bytes) -> Event | None:
    """The event of a line; None for a line without number and name, such as one that was cut off."""
    values = values_of(line)
    return None if values is None else from_json(values)


def values_of(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None for a line without number and name."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(values, dict) and type(values.get("n")) is int and "event" in values
    return values if is_event and isinstance(values.get("link"), str | None) else None


def from_json(values: Mapping[str, Any]) -> Event:
    """The event that ``to_json`` gave; an Unreadable where no class has these fields."""
    number, name = values["n"], values["event"]
    faults = {of: _faults(of, values) for of in _CLASSES if of.name == name}
    if not faults:
        return Unreadable(n=number, event=name, reason=f"this version has no event {name!r}")
    best = min(faults, key=lambda of: len(faults[of]))
    if faults[best]:
        lacking = " and ".join(faults[best])
        return Unreadable(n=number, event=name, reason=f"the event {name!r} lacks a valid {lacking}")
    own = {key: values[key] for key in _FIELDS[best] if key in values}
    if issubclass(best, TaskDone):
        own["report"] = {key: value for key, value in values.items() if key not in own and key != "event"}
    return best(**own)


def _faults(of: type[Event], values: Mapping[str, Any]) -> list[str]:
    """The fields that are missing or have another type."""
    wrong = [name for name, hint in _FIELDS[of].items() if name in values and not _fits(values[name], hint)]
    return [*wrong, *(name for name in _REQUIRED[of] if name not in values)]


def ending_of(events: Sequence[Event]) -> Finished | Unreadable | None:
    """The last event of a run that has ended; None for a run that has not."""
    last = events[-1] if events else None
    if isinstance(last, Finished) or (isinstance(last, Unreadable) and last.event == AccuracyResult.name):
        return last
    return None


def result_of(events: Sequence[Event]) -> Finished | None:
    """The result of a finished run; None for a run that has not ended or whose last event is damaged."""
    ending = ending_of(events)
    return ending if isinstance(ending, Finished) else None
