"""The finished runs of a stream, one row each: what `bitfreeze table --csv` writes."""

import csv
import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..methods import methods
from ..streams import streams
from .config import run_command
from .scores import score_row
from .store import Event
from .stored import StoredRun, common_changes, read_runs, variant_of

COLUMNS = [
    "method", "variant", "seed", "acc", "bwt", "bwt_T", "learning_acc", "forgetting", "intransigence", "capacity",
    "model_bytes", "extra_bytes", "buffer_bytes", "epochs_cap", "seconds", "protocol", "command", "environment",
]  # fmt: skip

WORDS = ("method", "variant", "protocol", "command", "environment", "name")

Row = dict[str, Any]
Ceilings = dict[tuple[Any, ...], float | None]  # what joint training learned, by what a run has in common with it


def finished_rows(root: Path, stream: str) -> list[Row]:
    """One row a finished run, in the order of method, variant and seed."""
    return rows_of(read_runs(sorted((root / stream).glob("*/seed*/config.toml"))))


def rows_of(runs: Iterable[StoredRun]) -> list[Row]:
    """Rows of the finished ones of these runs, all of one stream. One that is not known or damaged is named and left
    out.
    """
    finished = []
    for run in runs:
        if run.result is None:
            continue
        if run.method in methods and run.stream in streams:
            finished.append(run)
        else:
            what = f"{run.method} on {run.stream} is not known here (see BITFREEZE_PLUGINS)"
            warnings.warn(f"{run.folder.path} is left out: {what}", stacklevel=2)
    ceilings = {_setting(run.config): _result(run).get("learning_acc") for run in finished if _is_ceiling(run.config)}
    rows = []
    for run in finished:
        try:
            rows.append(rounded(_ROWS[streams[run.stream].trainer](run, ceilings)))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            warnings.warn(f"{run.folder.path} is damaged, so it is left out ({error!r})", stacklevel=2)
    return merged([], rows)


def rounded(row: Row) -> Row:
    """As the CSV has it, so that tables made from either are the same."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def _accuracy_row(run: StoredRun, ceilings: Ceilings) -> Row:
    return _row(run.config, _result(run), run.last_task, ceilings.get(_setting(run.config)))


def _score_row(run: StoredRun, _: Ceilings) -> Row:
    return {
        **_identity(run.config),
        **score_row(run.config, _result(run), run.last_task, run.tasks),
        **_origin(run.config),
    }


def _result(run: StoredRun) -> Event:
    assert run.result is not None
    return run.result


_ROWS = {"supervised": _accuracy_row, "reinforcement": _score_row}


def _identity(config: dict[str, Any]) -> Row:
    return {
        "method": config["method"],
        "variant": variant_of(config),
        "seed": config["seed"],
    }


def _origin(config: dict[str, Any]) -> Row:
    return {
        "command": run_command(*(config[k] for k in ("stream", "method", "variant", "seed", "changes"))),
        "environment": ", ".join(f"{name} {value}" for name, value in config["environment"].items()),
    }


def _is_ceiling(config: dict[str, Any]) -> bool:
    """Joint training with the preset's own options."""
    return config["method"] == "joint" and not config["variant"] and common_changes(config) == config["changes"]


def _setting(config: dict[str, Any]) -> tuple[Any, ...]:
    """What a run and the joint training that is its ceiling have in common."""
    return config["seed"], *common_changes(config)


def _row(config: dict[str, Any], result: Row, last_task: Row, ceiling: float | None) -> Row:
    row = {
        **{name: result[name] for name in COLUMNS if name in result},
        **_identity(config),
        # how much less well tasks are learned than by training on all of them so far
        "intransigence": None if ceiling is None else ceiling - result["learning_acc"],
        "capacity": last_task.get("capacity"),
        "epochs_cap": config["training"]["epochs"],
        "protocol": _protocol(config),
        **_origin(config),
    }
    return {name: row[name] for name in COLUMNS}


def _protocol(config: dict[str, Any]) -> str:
    training, record = config["training"], methods[config["method"]].record
    return (
        f"{record.optimizer} lr {training['lr']:g}, batch {training['batch']}, "
        f"up to {training['epochs']} epochs a task; lr / {training['factor']:g} after "
        f"{training['patience']} epochs without a lower loss on the validation data "
        f"({config['stream_options'].get('validation', 'train')}), end below {training['lr_min']:g}; "
        f"{'networks of its own' if record.own_networks else _network(config['network'])}"
    )


def _network(options: dict[str, Any]) -> str:
    return " ".join([options["kind"], *(f"{name}={value}" for name, value in options.items() if name != "kind")])


def to_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def from_csv(text: str) -> list[Row]:
    """What to_csv wrote; a cell in which nothing stands is None."""
    return [{name: _value(name, cell) for name, cell in line.items()} for line in csv.DictReader(io.StringIO(text))]


def _value(name: str, cell: str) -> str | int | float | None:
    if name in WORDS:
        return cell
    return (int(cell) if cell.lstrip("-").isdigit() else float(cell)) if cell else None


def merged(kept: list[Row], new: list[Row]) -> list[Row]:
    """Rows that were kept, those of the same run replaced by new ones, in the order of method, variant and seed."""

    def run(row: Row) -> tuple[str, str, int]:
        return row["method"], row["variant"], row["seed"]

    replaced = {run(row) for row in new}
    return sorted([row for row in kept if run(row) not in replaced] + new, key=run)
