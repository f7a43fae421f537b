"""Rows of finished runs, one for each: what `bitfreeze table --csv` writes."""

import csv
import io
import warnings
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any

from ..methods import methods
from ..runs.columns import Column, EndedRun, Row, with_values_among
from ..runs.events import Finished, ending_of
from ..runs.kinds import kind_of, kinds
from ..streams import streams
from .stored import StoredRun, read_runs

# columns of words; "name" is that of a task, in files about single tasks
_TEXTS = {"name", *(column.name for kind in kinds.values() for column in kind.columns if column.text)}


def finished_rows(root: Path, stream: str) -> list[Row]:
    """The rows of all finished runs of a stream, in the order of method, variant and seed."""
    return rows_of(read_runs(sorted((root / stream).glob("*/seed*/config.toml"))))


def rows_of(runs: Iterable[StoredRun]) -> list[Row]:
    """The rows of the finished ones of these runs, which are all of one stream. A run that is damaged or that needs a
    plugin is named and left out."""
    ended = [run for run in runs if ending_of(run.events) is not None and _is_known(run)]
    if not ended:
        return []
    stream, rows = ended[0].stream, []
    columns = [column for column in kind_of(stream).columns if column.in_csv]
    for run in ended:
        try:
            rows.append(_row(run, columns))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            warnings.warn(f"{run.folder.path} is damaged, so it is left out ({error!r})", stacklevel=2)
    return merged([], [rounded(row) for row in with_values_among(rows, columns, stream)])


def _is_known(run: StoredRun) -> bool:
    known = run.method in methods and run.stream in streams
    if not known:
        missing = f"no file in BITFREEZE_PLUGINS registers {run.method} on {run.stream}"
        warnings.warn(f"{run.folder.path} is left out: {missing}", stacklevel=4)
    return known


def _row(run: StoredRun, columns: Iterable[Column[Any]]) -> Row:
    ending = ending_of(run.events)
    if not isinstance(ending, Finished):
        raise ValueError("its last event cannot be read" if ending is None else ending.reason)
    ended = EndedRun(run.config, run.tasks, run.learned, ending)
    row = {name: value for column in columns for name, value in column.values(ended).items()}
    odd = next((name for name, value in row.items() if isinstance(value, float) and not isfinite(value)), None)
    if odd is not None:
        raise ValueError(f"{odd} is {row[odd]}")
    return row


def rounded(row: Row) -> Row:
    """The row as the CSV has it, so that tables made from either are the same."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def to_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def from_csv(text: str) -> list[Row]:
    """The rows that ``to_csv`` wrote; an empty cell is None."""
    try:
        lines = list(csv.DictReader(io.StringIO(text)))
    except csv.Error as error:
        raise ValueError(f"the table must be CSV, got what is not ({error})") from None
    for number, line in enumerate(lines, 2):
        if None in line or None in line.values():
            raise ValueError(f"line {number} of the table must have a cell for each column, got more or fewer")
    return [{name: _value(name, cell) for name, cell in line.items()} for line in lines]


def _value(name: str, cell: str) -> str | int | float | None:
    if name in _TEXTS:
        return cell
    return (int(cell) if cell.lstrip("-").isdigit() else float(cell)) if cell else None


def merged(kept: list[Row], new: list[Row]) -> list[Row]:
    """Rows that were kept, those of the same run replaced by new ones, in the order of method, variant and seed."""

    def run(row: Row) -> tuple[str, str, int]:
        return row["method"], row["variant"], row["seed"]

    replaced = {run(row) for row in new}
    return sorted([row for row in kept if run(row) not in replaced] + new, key=run)
