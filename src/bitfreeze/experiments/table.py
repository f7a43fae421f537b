"""A row a method, beside the paper's figures: mean and standard deviation over seeds."""

from dataclasses import dataclass
from statistics import mean, stdev

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from .config import preset
from .rows import Row

# two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom
_T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]

PREFACE = """\
Accuracy in percent on each task's test samples, mean ± standard deviation over seeds. ACC: after the last task. BWT:
its mean change since each task was learned (divided by T - 1). Learned: each task when it was learned. Intransigence:
how much less that is than joint training's. Seconds: wall time of a run on one core, other work beside it.
"""

Runs = dict[int, Row]  # by seed
Spread = tuple[float, float]  # mean and standard deviation


@dataclass(frozen=True)
class Line:
    """A method on a stream: over its seeds, and the paper's figures if it has any."""

    method: str
    variant: str
    seeds: int
    acc: Spread
    bwt: Spread
    learning_acc: float
    intransigence: float | None
    capacity: float | None
    difference: Spread | None  # of ACC to the method compared with, and half its 95 % interval
    paper_acc: float | None
    paper_bwt: float | None
    extra_bytes: float
    seconds: float


def summarise(rows: list[Row], stream: str, against: str = "") -> list[Line]:
    """``against``: a method that each is compared with, seed by seed, where it was run with the same settings of
    stream, network and training; or a method with its variant, as the table has it."""
    groups: dict[tuple[str, str], Runs] = {}
    for row in rows:
        groups.setdefault((row["method"], row["variant"]), {})[row["seed"]] = row
    bases = {key: _base(groups, key, against) for key in groups} if against else {}
    if against and not any(bases.values()):
        known = ", ".join(sorted(" ".join(key).strip() for key in groups))
        raise ValueError(f"there is no finished run of {against!r} to compare with: there are {known}")
    paper = preset(stream).get("paper", {})
    return [_line(*key, runs, bases.get(key), paper.get(key[0], {})) for key, runs in groups.items()]


def _base(groups: dict[tuple[str, str], Runs], key: tuple[str, str], against: str) -> Runs | None:
    """The runs that those of ``key`` are compared with."""
    method, _, variant = against.partition(" ")
    return groups.get((method, variant or " ".join(_settings(key[1]))))


def _settings(variant: str) -> list[str]:
    """What of a variant is not the method's own."""
    return [word for word in variant.split() if "=" in word and not word.startswith("method.")]


def _line(method: str, variant: str, runs: Runs, base: Runs | None, paper: dict[str, float]) -> Line:
    def average(name: str) -> float | None:
        values = [run[name] for run in runs.values() if run[name] is not None]
        return mean(values) if values else None

    def spread(name: str) -> Spread:
        values = [run[name] for run in runs.values()]
        return mean(values), stdev(values) if len(values) > 1 else 0.0

    return Line(
        method, variant, len(runs), spread("acc"), spread("bwt"), spread("learning_acc")[0], average("intransigence"),
        average("capacity"), _paired(runs, base), paper.get("acc"), paper.get("bwt"),
        spread("extra_bytes")[0] + spread("buffer_bytes")[0], spread("seconds")[0],
    )  # fmt: skip


def _paired(runs: Runs, base: Runs | None) -> Spread | None:
    """The mean difference of ACC over common seeds and half its 95 % confidence interval."""
    common = sorted(runs.keys() & base.keys()) if base is not None and base is not runs else []
    if base is None or len(common) < 2:
        return None
    differences = [runs[seed]["acc"] - base[seed]["acc"] for seed in common]
    t = _T95[min(len(differences) - 1, len(_T95)) - 1]
    return mean(differences), t * stdev(differences) / len(differences) ** 0.5


def grid(lines: list[Line], against: str = "") -> tuple[list[str], list[list[str]]]:
    """The names of the columns and the cells of each line; columns in which nothing stands are left out."""
    columns = [_cells(line) for line in lines]
    if against:
        columns = [
            {**cells, f"ACC to {against}": _plus_minus(line.difference)}
            for cells, line in zip(columns, lines, strict=True)
        ]
    names = [name for name in columns[0] if any(cells[name] for cells in columns)] if columns else []
    return names, [[cells[name] for name in names] for cells in columns]


def _cells(line: Line) -> dict[str, str]:
    return {
        "method": line.method,
        "variant": line.variant,
        "seeds": str(line.seeds),
        "ACC": _plus_minus(line.acc) if line.seeds > 1 else f"{line.acc[0]:.2f}",
        "BWT": _plus_minus(line.bwt) if line.seeds > 1 else f"{line.bwt[0]:.2f}",
        "learned": f"{line.learning_acc:.2f}",
        "intransigence": _figure(line.intransigence),
        "capacity used": _figure(line.capacity, ".0%"),
        "extra MB": f"{line.extra_bytes / 1e6:.3g}",
        "paper ACC": _figure(line.paper_acc),
        "paper BWT": _figure(line.paper_bwt),
        "seconds": f"{line.seconds:.0f}",
    }


def _figure(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _plus_minus(value: Spread | None) -> str:
    return "" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def to_markdown(lines: list[Line], against: str = "") -> str:
    names, rows = grid(lines, against)
    table = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table) + "\n"


def to_page(rows: list[Row], stream: str, against: str = "", title: str = "") -> str:
    """The table as Markdown with all that is needed to judge and to repeat it."""
    protocols, environments = ({row[name] for row in rows} for name in ("protocol", "environment"))
    return "\n".join(
        [
            f"# {title or stream}\n",
            PREFACE,
            to_markdown(summarise(rows, stream, against), against),
            *(f"Protocol: {text}.\n" for text in sorted(protocols)),
            *(f"Versions: {text}.\n" for text in sorted(environments)),
            "Each row of the CSV beside this page holds the command that made it.",
        ]
    )


def to_terminal(lines: list[Line], stream: str, against: str = "") -> Table:
    names, rows = grid(lines, against)
    table = Table(title=f"{stream}: percent, mean ± standard deviation over seeds", box=SIMPLE)
    for name in names:
        table.add_column(name, justify="left" if name in ("method", "variant") else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
