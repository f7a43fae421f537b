"""The finished runs of a stream, one row each: what `bitfreeze table --csv` writes."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..methods import methods
from .config import run_command
from .store import RunFolder

COLUMNS = [
    "method", "variant", "seed", "acc", "bwt", "bwt_T", "learning_acc", "forgetting", "intransigence", "capacity",
    "model_bytes", "extra_bytes", "buffer_bytes", "epochs_cap", "seconds", "protocol", "command",
]  # fmt: skip

Row = dict[str, Any]


def finished_rows(root: Path, stream: str) -> list[Row]:
    """One row a finished run, in the order of method, variant and seed."""
    return rows_of(RunFolder(file.parent) for file in sorted((root / stream).glob("*/seed*/config.toml")))


def rows_of(folders: Iterable[RunFolder]) -> list[Row]:
    """Rows of those of these runs, all of one stream, that are finished."""
    found = []
    for folder in folders:
        result = folder.result()
        if result is not None:
            found.append((folder.read_config(), result, folder.last("task")))
    ceilings = {_setting(config): result["learning_acc"] for config, result, _ in found if _is_ceiling(config)}
    rows = [_row(config, result, last_task, ceilings.get(_setting(config))) for config, result, last_task in found]
    return sorted(rows, key=lambda row: (row["method"], row["variant"], row["seed"]))


def _is_ceiling(config: dict[str, Any]) -> bool:
    """Joint training with the preset's own options."""
    own = config["variant"] or any(change.startswith("method.") for change in config["changes"])
    return config["method"] == "joint" and not own


def _setting(config: dict[str, Any]) -> tuple[Any, ...]:
    """What a run and the joint training that is its ceiling have in common."""
    return config["seed"], *(change for change in config["changes"] if not change.startswith("method."))


def _row(config: dict[str, Any], result: Row, last_task: Row, ceiling: float | None) -> Row:
    return {
        **{name: result[name] for name in COLUMNS if name in result},
        "method": config["method"],
        "variant": " ".join(word for word in (config["variant"], *config["changes"]) if word),
        "seed": config["seed"],
        # how much less well tasks are learned than by training on all of them so far
        "intransigence": None if ceiling is None else ceiling - result["learning_acc"],
        "capacity": last_task.get("capacity"),
        "epochs_cap": config["training"]["epochs"],
        "protocol": _protocol(config),
        "environment": ", ".join(f"{name} {value}" for name, value in config["environment"].items()),
        "command": run_command(*(config[k] for k in ("stream", "method", "variant", "seed", "changes"))),
    }


def _protocol(config: dict[str, Any]) -> str:
    training, network = config["training"], dict(config["network"])
    origin, optimizer = config["protocol"].partition(":")[0], methods[config["method"]].record.optimizer
    kind = network.pop("kind")
    options = " ".join(f"{name}={value}" for name, value in network.items())
    return (
        f"{origin} settings; {optimizer} lr {training['lr']:g}, batch {training['batch']}, "
        f"up to {training['epochs']} epochs a task; lr / {training['factor']:g} after "
        f"{training['patience']} epochs without a lower loss on the validation data "
        f"({config['stream_options'].get('validation', 'train')}), end below {training['lr_min']:g}; {kind} {options}"
    )


def to_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()
