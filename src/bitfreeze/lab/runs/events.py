"""The events of a run: a class for each, and how each is written to a line of ``events.jsonl``.

A line holds the event's number, its name, its link and its other fields. A field that is None by default is left out of
the line where it is None, so such fields stand behind all others; runs of older versions lack some of them.
"""

import json
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that a run notes. ``n`` counts events from 0, ``link`` ties the line to the one before it; the log of
    the run sets both (event_log.py)."""

    name: ClassVar[str]
    last: ClassVar[tuple[str, ...]] = ()  # fields that stand behind those which a subclass adds
    n: int = 0
    link: str | None = field(default=None, compare=False)

    @classmethod
    def in_line(cls) -> list[Field[Any]]:
        """The fields in the order of a line."""
        first = len(fields(Event))
        rest = sorted(fields(cls)[first:], key=lambda each: (each.default is None, each.name in cls.last))
        return [*fields(cls)[:first], *rest]

    def to_json(self) -> dict[str, Any]:
        """The event as one table of plain values, in the order of its line."""
        values = {each.name: getattr(self, each.name) for each in self.in_line()}
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
class TaskDone(Event):
    """A task is learned. ``report`` is what the method says of itself."""

    name = "task"
    last = ("extra_bytes", "buffer_bytes", "files")
    matrix: ClassVar[str]  # the field that is the next row of the matrix
    task: int
    extra_bytes: int
    buffer_bytes: int
    files: dict[str, str] | None = None  # SHA-256 of each file that was kept of the task
    report: dict[str, float] = field(default_factory=dict)

    @property
    def row(self) -> list[float]:
        row: list[float] = getattr(self, self.matrix)
        return row


@dataclass(frozen=True, kw_only=True)
class TaskTested(TaskDone):
    """A task of a supervised run is learned.

    ``accuracy`` is without the task where one head grows, else with it. The other row is there where one pass gives
    both.
    """

    matrix = "accuracy"
    accuracy: list[float]
    accuracy_with_task: list[float] | None = None
    accuracy_without_task: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class TaskPlayed(TaskDone):
    """A task of games is learned. ``score`` has means of the scores in ``games``."""

    matrix = "score"
    score: list[float]
    games: list[list[float]]
    learned: bool  # whether the task is played better than at random
    evaluation_seconds: float


@dataclass(frozen=True, kw_only=True)
class TaskRead(TaskDone):
    """A task of text is learned. ``loss`` is in nats a token."""

    matrix = "loss"
    loss: list[float]


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """A run has ended."""

    name = "finished"
    last = ("model_bytes", "extra_bytes", "buffer_bytes", "seconds")
    model_bytes: int
    extra_bytes: int
    buffer_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AccuracyResult(Finished):
    """A supervised run has ended. Accuracies are in percent; metrics.py defines each of them."""

    acc: float
    bwt: float
    bwt_T: float
    forgetting: float
    learning_acc: float
    acc_with_task: float | None = None  # where acc is without it
    acc_without_task: float | None = None  # where acc is with it, and one pass gives both


@dataclass(frozen=True, kw_only=True)
class ScoreResult(Finished):
    """A run of games has ended. Each list has one mean score, or one answer, for each task."""

    final: list[float]
    after_learning: list[float]
    random: list[float]
    best: list[float]
    learned: list[bool]
    kept: float | None
    evaluation_seconds: float


@dataclass(frozen=True, kw_only=True)
class LossResult(Finished):
    """A run of texts has ended. Each list has a loss in nats a token for each task."""

    final: list[float]
    after_learning: list[float]
    before: list[float]  # of the pretrained network; empty where the first task was not known to it


@dataclass(frozen=True, kw_only=True)
class Unreadable(Event):
    """A line that has a number and a name, but is no event of this version; ``reason`` says why."""

    name = "unreadable"
    event: str  # the name in the line
    reason: str


Round = EpochDone | UpdateDone


def ending_of(events: Sequence[Event]) -> Finished | Unreadable | None:
    """The last event of a run that has ended; None for a run that has not."""
    last = events[-1] if events else None
    if isinstance(last, Finished) or (isinstance(last, Unreadable) and last.event == Finished.name):
        return last
    return None


def result_of(events: Sequence[Event]) -> Finished | None:
    """The result of a finished run; None for a run that has not ended or whose last event is damaged."""
    ending = ending_of(events)
    return ending if isinstance(ending, Finished) else None
