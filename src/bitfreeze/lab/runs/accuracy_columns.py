"""Columns of tables of supervised runs, whose figures are accuracies in percent."""

from collections.abc import Sequence
from typing import Any

from ..methods import methods
from ..metrics import stability
from .columns import (
    IDENTITY,
    ORIGIN,
    SECONDS,
    SIZES,
    Column,
    EndedRun,
    Row,
    capacity,
    common_changes,
    mean_of,
    network_words,
    spread_of,
)  # fmt: skip
from .config import preset
from .events import AccuracyResult

PREFACE = """\
Accuracy in percent on samples that are kept for testing, mean ± standard deviation over seeds. ACC: after the last
task. BWT: its mean change since each task was learned (divided by T - 1). Learned: each task when it was learned.
Intransigence: how much less that is than joint training's. Plasticity: how much more it is than fine-tuning's.
Transfer: how much more it is than that of a separate network for each task, so it is forward transfer measured when a
task is learned. Stability: of the accuracy that earlier tasks had when they were learned, the share that is left. Extra
MB: what the method keeps beside the network, samples included. Memory MB: the same with the network, after the first
task and after the last if it grew. Seconds: wall time on one core, other work beside it.
Seeds are of training: the order of tasks and the samples held out are those of stream.seed, which is 0 throughout where
the variant does not say otherwise.
"""


def _beyond(method: str, rows: Sequence[Row]) -> list[float | None]:
    """How much better tasks are learned than by this method with the same seed and settings."""
    theirs = {_setting(row): row["learning_acc"] for row in rows if _is_reference(row, method)}
    found = [theirs.get(_setting(row)) for row in rows]
    return [None if their is None else row["learning_acc"] - their for row, their in zip(rows, found, strict=True)]


def _intransigence(rows: Sequence[Row], _: str) -> list[float | None]:
    """How much less well tasks are learned than by joint training."""
    return [None if more is None else 0.0 - more for more in _beyond("joint", rows)]


def _learned_beyond(name: str, method: str) -> Column[AccuracyResult]:
    """How much better tasks are learned than by another method."""
    return Column(
        name, among=lambda rows, _: _beyond(method, rows), summary=(name, mean_of("z.2f")), better=1, in_csv=False
    )


def _stability(run: EndedRun[AccuracyResult]) -> float | None:
    return stability([task.row for task in run.learned])


def _setting(row: Row) -> tuple[Any, ...]:
    return row["seed"], *common_changes(row["variant"].split())


def _is_reference(row: Row, method: str) -> bool:
    """Whether a run is of this method with the preset's own options."""
    words = row["variant"].split()
    return common_changes(words) == words and bool(row["method"] == method)


def _paper(name: str, title: str) -> Column[AccuracyResult]:
    """A figure of the paper."""

    def among(rows: Sequence[Row], stream: str) -> list[float | None]:
        figures = preset(stream).get("paper", {})
        return [figures.get(row["method"], {}).get(name) if _is_the_papers_stream(row) else None for row in rows]

    return Column(f"paper_{name}", among=among, summary=(title, mean_of(".2f")), in_csv=False)


def _is_the_papers_stream(row: Row) -> bool:
    """Fewer tasks, or other samples to test on, make another stream."""
    return not any(word.startswith("stream.") for word in row["variant"].split())


def _protocol(run: EndedRun[AccuracyResult]) -> str:
    training, record = run.config["training"], methods[run.config["method"]].record
    optimizer = "AdamW" if training.get("optimizer") == "adamw" else record.optimizer
    return (
        f"{optimizer} lr {training['lr']:g}, batch {training['batch']}, "
        f"up to {training['epochs']} epochs a task; lr / {training['factor']:g} after "
        f"{training['patience']} epochs without a lower loss on the validation data "
        f"({run.config['stream_options'].get('validation', 'train')}), end below {training['lr_min']:g}; "
        f"{'networks of its own' if record.own_networks else network_words(run.config['network'])}"
    )


def _acc(name: str, title: str) -> Column[AccuracyResult]:
    """ACC as it is with or without the task, where the matrix has the other."""
    return Column(name, lambda run: getattr(run.result, name), summary=(title, spread_of(".2f")), rare=True)


COLUMNS: tuple[Column[AccuracyResult], ...] = (
    *IDENTITY,
    Column("acc", lambda run: run.result.acc, summary=("ACC", spread_of(".2f")), better=1),
    Column("bwt", lambda run: run.result.bwt, summary=("BWT", spread_of(".2f")), better=1),
    Column("bwt_T", lambda run: run.result.bwt_T),
    Column("learning_acc", lambda run: run.result.learning_acc, summary=("learned", mean_of(".2f")), better=1),
    _acc("acc_with_task", "ACC with task"),
    _acc("acc_without_task", "ACC without task"),
    Column("forgetting", lambda run: run.result.forgetting),
    Column("intransigence", among=_intransigence, summary=("intransigence", mean_of("z.2f")), better=-1),
    _learned_beyond("plasticity", "ft"),
    _learned_beyond("transfer", "single"),
    Column("stability", _stability, summary=("stability", mean_of(".1%")), better=1),
    capacity(mean_of(".0%")),
    *SIZES,
    Column("epochs_cap", lambda run: run.config["training"]["epochs"]),
    _paper("acc", "paper ACC"),
    _paper("bwt", "paper BWT"),
    SECONDS,
    Column("protocol", _protocol, text=True),
    *ORIGIN,
)
