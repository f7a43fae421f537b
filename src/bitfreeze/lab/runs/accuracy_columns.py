"""Columns of tables of supervised runs, whose figures are accuracies in percent."""

from collections.abc import Sequence
from typing import Any

from ..methods import methods
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
Intransigence: how much less that is than joint training's. Seconds: wall time on one core, other work beside it.
Seeds are of training: the order of tasks and the samples held out are those of stream.seed, which is 0 throughout where
the variant does not say otherwise.
"""


def _intransigence(rows: Sequence[Row], _: str) -> list[float | None]:
    """How much less well tasks are learned than by joint training with the same seed and settings."""
    ceilings = {_setting(row): row["learning_acc"] for row in rows if _is_ceiling(row)}
    found = [ceilings.get(_setting(row)) for row in rows]
    return [None if best is None else best - row["learning_acc"] for row, best in zip(rows, found, strict=True)]


def _setting(row: Row) -> tuple[Any, ...]:
    return row["seed"], *common_changes(row["variant"].split())


def _is_ceiling(row: Row) -> bool:
    """Whether a run is joint training with the preset's own options."""
    words = row["variant"].split()
    return common_changes(words) == words and bool(row["method"] == "joint")


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
    return (
        f"{record.optimizer} lr {training['lr']:g}, batch {training['batch']}, "
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
    Column("acc", lambda run: run.result.acc, summary=("ACC", spread_of(".2f"))),
    _acc("acc_with_task", "ACC with task"),
    _acc("acc_without_task", "ACC without task"),
    Column("bwt", lambda run: run.result.bwt, summary=("BWT", spread_of(".2f"))),
    Column("bwt_T", lambda run: run.result.bwt_T),
    Column("learning_acc", lambda run: run.result.learning_acc, summary=("learned", mean_of(".2f"))),
    Column("forgetting", lambda run: run.result.forgetting),
    Column("intransigence", among=_intransigence, summary=("intransigence", mean_of(".2f"))),
    capacity(mean_of(".0%")),
    *SIZES,
    Column("epochs_cap", lambda run: run.config["training"]["epochs"]),
    _paper("acc", "paper ACC"),
    _paper("bwt", "paper BWT"),
    SECONDS,
    Column("protocol", _protocol, text=True),
    *ORIGIN,
)
