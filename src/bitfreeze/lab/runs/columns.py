"""Columns of tables: what a run gives to the CSV, and what runs that differ only in their seed give to a summary."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Generic, TypeVar

from ..metrics import spread
from .config import in_words, run_command
from .events import Finished, TaskDone

Row = dict[str, Any]  # a line of the CSV: one finished run
R = TypeVar("R", bound=Finished)
Cell = Callable[[Sequence[Row], str], str]  # of the rows of all seeds and the name of the column


@dataclass(frozen=True)
class EndedRun(Generic[R]):
    """What columns know of a finished run."""

    config: Mapping[str, Any]  # as config.toml has it
    tasks: Sequence[str]
    learned: Sequence[TaskDone]  # an event for each task
    result: R

    @property
    def last_task(self) -> TaskDone | None:
        return self.learned[-1] if self.learned else None


@dataclass(frozen=True)
class Shown:
    """A column of the summary: its name in rows, and what a cell shows."""

    name: str
    cell: Cell
    better: int = 0


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of the CSV, of the summary, or of both.

    A value comes from the run (``of_run``), or from all rows of the table together and the name of the stream
    (``among``).
    """

    name: str
    of_run: Callable[[EndedRun[R]], Any] | None = None
    among: Callable[[Sequence[Row], str], Sequence[Any]] | None = None
    summary: tuple[str, Cell] | None = None  # title and cell in the summary; None: the column is in the CSV alone
    better: int = 0  # 1: a larger mean is better, -1: a smaller one, 0: neither
    by_task: bool = False  # one column for each task, which titles it in the summary; of_run gives a list
    text: bool = False
    in_csv: bool = True  # else the value is computed anew for each summary
    rare: bool = False  # a run without a value has no entry, so that a CSV without any value lacks the column

    def values(self, run: EndedRun[R]) -> Row:
        """What one run has in this column, or in the columns of its tasks."""
        if self.of_run is None:
            return {self.name: None}
        value = self.of_run(run)
        if self.rare and value is None:
            return {}
        if not self.by_task:
            return {self.name: value}
        return {f"{self.name} {task}": entry for task, entry in zip(run.tasks, value, strict=True)}

    def shown(self, rows: Sequence[Row]) -> dict[str, Shown]:
        """By title, what this column shows in the summary of these rows."""
        if self.summary is None:
            return {}
        title, cell = self.summary
        if not self.by_task:
            return {title: Shown(self.name, cell, self.better)}
        return {task: Shown(f"{self.name} {task}", cell, self.better) for task in tasks_of(rows, self.name)}


def tasks_of(rows: Iterable[Row], name: str) -> list[str]:
    """The tasks that any of the rows has a value for; every row of a CSV has the columns of all tasks."""
    start = f"{name} "
    found = (key for row in rows for key, value in row.items() if key.startswith(start) and value is not None)
    return list(dict.fromkeys(key.removeprefix(start) for key in found))


def with_values_among(rows: Sequence[Row], columns: Iterable[Column[Any]], stream: str) -> list[Row]:
    """The rows with the values of those columns that depend on all rows."""
    values = {column.name: column.among(rows, stream) for column in columns if column.among is not None}
    return [row | {name: found[k] for name, found in values.items()} for k, row in enumerate(rows)]


def common_changes(changes: Iterable[str]) -> list[str]:
    """The changes of stream, network and training: methods that are compared have these in common. The words of a
    variant may be given too: the name of a preset's variant is left out."""
    return [change for change in changes if "=" in change and not change.startswith("method.")]


# cells of the summary


def mean_of(form: str) -> Cell:
    """The mean over seeds; empty where no run has a value."""

    def cell(rows: Sequence[Row], name: str) -> str:
        found = values_of(rows, name)
        return format(mean(found), form) if found else ""

    return cell


def spread_of(form: str) -> Cell:
    """Mean and standard deviation over seeds; the mean alone where one run has a value."""

    def cell(rows: Sequence[Row], name: str) -> str:
        found = values_of(rows, name)
        if len(found) < 2:
            return mean_of(form)(rows, name)
        return " ± ".join(format(value, form) for value in spread(found))

    return cell


def values_of(rows: Iterable[Row], name: str) -> list[float]:
    """The values of a column, of those rows that have one."""
    return [row[name] for row in rows if row.get(name) is not None]


def _first(rows: Sequence[Row], name: str) -> str:
    return str(rows[0][name])


def _count(rows: Sequence[Row], _: str) -> str:
    return str(len(rows))


def _megabytes(rows: Sequence[Row], _: str) -> str:
    return three_digits(mean(row["extra_bytes"] + row["buffer_bytes"] for row in rows) / 1e6)


def _growth(rows: Sequence[Row], name: str) -> str:
    """Memory after the first task and in the end; once where it has not grown, or the rows do not tell."""
    firsts = [found[0] / 1e6 for row in rows if (found := memory_after_tasks(row))]
    ends = [three_digits(mean(values)) for values in (firsts, values_of(rows, name)) if values]
    return " to ".join(dict.fromkeys(ends))


def three_digits(value: float) -> str:
    """A number with three digits, or with all of those before its point."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


# columns of every kind


def memory_after_tasks(row: Row) -> list[int]:
    """Bytes of network, method and buffer after each task; empty for rows of a version that did not note them."""
    return [int(count) for count in (row.get("memory_by_task") or "").split()]


def _memory_by_task(run: EndedRun[Any]) -> str:
    counts = (run.result.model_bytes + task.extra_bytes + task.buffer_bytes for task in run.learned)
    return " ".join(map(str, counts))


def _memory(rows: Sequence[Row], _: str) -> list[float]:
    return [(row["model_bytes"] + row["extra_bytes"] + row["buffer_bytes"]) / 1e6 for row in rows]


def _variant(run: EndedRun[Any]) -> str:
    return in_words(run.config["variant"], run.config["changes"])


def _command(run: EndedRun[Any]) -> str:
    return run_command(*(run.config[key] for key in ("stream", "method", "variant", "seed", "changes")))


def _environment(run: EndedRun[Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in run.config["environment"].items())


def network_words(options: Mapping[str, Any]) -> str:
    """A network's kind and options, for the sentence that says how a run was trained."""
    return " ".join([options["kind"], *(f"{name}={value}" for name, value in options.items() if name != "kind")])


def capacity(cell: Cell) -> Column[Any]:
    """The share of bits that are frozen in the end."""

    def of_run(run: EndedRun[Any]) -> float | None:
        return run.last_task.report.get("capacity") if run.last_task else None

    return Column("capacity", of_run, summary=("capacity used", cell))


IDENTITY: tuple[Column[Any], ...] = (
    Column("method", lambda run: run.config["method"], summary=("method", _first), text=True),
    Column("variant", _variant, summary=("variant", _first), text=True),
    Column("seed", lambda run: run.config["seed"], summary=("seeds", _count)),
)
SIZES: tuple[Column[Any], ...] = (
    Column("model_bytes", lambda run: run.result.model_bytes),
    Column("extra_bytes", lambda run: run.result.extra_bytes, summary=("extra MB", _megabytes)),
    Column("buffer_bytes", lambda run: run.result.buffer_bytes),
    Column("memory_by_task", _memory_by_task, text=True),
    Column("memory_mb", among=_memory, summary=("memory MB", _growth), better=-1, in_csv=False),
)
SECONDS: Column[Any] = Column("seconds", lambda run: run.result.seconds, summary=("seconds", mean_of(".0f")), better=-1)
ORIGIN: tuple[Column[Any], ...] = (
    Column("command", _command, text=True),
    Column("environment", _environment, text=True),
)
