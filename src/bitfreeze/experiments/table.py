"""Finished runs of a stream as a table: a row a run for CSV, a row a method beside the paper's for reading."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from .config import preset, run_command
from .store import RunFolder

COLUMNS = [
    "method", "variant", "seed", "acc", "bwt", "bwt_T", "learning_acc", "forgetting", "model_bytes", "extra_bytes",
    "buffer_bytes", "epochs_cap", "seconds", "protocol", "command",
]  # fmt: skip

# two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom
_T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]


def finished_rows(root: Path, stream: str) -> list[dict[str, Any]]:
    """One row a finished run, in the order of method, variant and seed."""
    rows = []
    for file in sorted((root / stream).glob("*/seed*/config.toml")):
        folder = RunFolder(file.parent)
        result = folder.result()
        if result is None:
            continue
        config = folder.read_config()
        words = [config["variant"], *config["changes"]]
        rows.append(
            {
                **{name: result[name] for name in COLUMNS if name in result},
                "method": config["method"],
                "variant": " ".join(word for word in words if word),
                "seed": config["seed"],
                "epochs_cap": config["training"]["epochs"],
                "protocol": config["protocol"],
                "command": run_command(*(config[k] for k in ("stream", "method", "variant", "seed", "changes"))),
            }
        )
    return sorted(rows, key=lambda row: (row["method"], row["variant"], row["seed"]))


def to_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
        writer.writerow(rounded)
    return text.getvalue()


@dataclass(frozen=True)
class Line:
    """A method on a stream: mean and standard deviation over seeds, and the paper's figures if it has any."""

    method: str
    variant: str
    seeds: int
    acc: tuple[float, float]
    bwt: tuple[float, float]
    learning_acc: float
    difference: tuple[float, float] | None  # of ACC to the method compared with, and half its 95 % interval
    paper_acc: float | None
    paper_bwt: float | None
    seconds: float


def summarise(rows: list[dict[str, Any]], stream: str, against: str = "") -> list[Line]:
    """``against``: a method (or ``method variant``) that each is compared with, seed by seed."""
    groups: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["variant"]), {})[row["seed"]] = row
    base = next((runs for key, runs in groups.items() if " ".join(key).strip() == against), None)
    if against and base is None:
        known = ", ".join(sorted(" ".join(key).strip() for key in groups))
        raise ValueError(f"there is no finished run of {against!r} to compare with: there are {known}")
    paper = preset(stream).get("paper", {})
    return [_line(key, runs, base, paper) for key, runs in groups.items()]


def _line(
    key: tuple[str, str], runs: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]] | None, paper: dict[str, Any]
) -> Line:
    def spread(name: str) -> tuple[float, float]:
        values = [run[name] for run in runs.values()]
        return mean(values), stdev(values) if len(values) > 1 else 0.0

    return Line(
        *key, len(runs), spread("acc"), spread("bwt"), spread("learning_acc")[0], _paired(runs, base),
        paper.get(key[0], {}).get("acc"), paper.get(key[0], {}).get("bwt"), spread("seconds")[0],
    )  # fmt: skip


def _paired(runs: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]] | None) -> tuple[float, float] | None:
    """The mean difference of ACC over common seeds and half its 95 % confidence interval."""
    common = sorted(runs.keys() & base.keys()) if base is not None and base is not runs else []
    if base is None or len(common) < 2:
        return None
    differences = [runs[seed]["acc"] - base[seed]["acc"] for seed in common]
    t = _T95[min(len(differences) - 1, len(_T95)) - 1]
    return mean(differences), t * stdev(differences) / len(differences) ** 0.5


HEADER = ["method", "variant", "seeds", "ACC", "BWT", "learned", "paper ACC", "paper BWT", "seconds"]


def cells(line: Line) -> list[str]:
    """A line as text; the paper's figures stand beside."""

    def plus_minus(value: tuple[float, float]) -> str:
        return f"{value[0]:.2f} ± {value[1]:.2f}" if line.seeds > 1 else f"{value[0]:.2f}"

    def figure(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    texts = [
        line.method, line.variant, str(line.seeds), plus_minus(line.acc), plus_minus(line.bwt),
        f"{line.learning_acc:.2f}", figure(line.paper_acc), figure(line.paper_bwt), f"{line.seconds:.0f}",
    ]  # fmt: skip
    if line.difference is not None:
        texts.append(f"{line.difference[0]:+.2f} ± {line.difference[1]:.2f}")
    return texts


def to_markdown(lines: list[Line], against: str = "") -> str:
    header = [*HEADER, *([f"ACC to {against}"] if against else [])]
    table = [header, ["---"] * len(header)]
    for line in lines:
        row = cells(line)
        table.append(row + [""] * (len(header) - len(row)))
    return "\n".join("| " + " | ".join(row) + " |" for row in table) + "\n"
