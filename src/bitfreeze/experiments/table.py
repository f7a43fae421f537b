"""A row a method, beside the paper's figures: mean and standard deviation over seeds."""

from dataclasses import dataclass
from statistics import mean, stdev

from rich.table import Table

from .config import preset
from .rows import Row

# two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom
_T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]

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
    """``against``: a method (or ``method variant``) that each is compared with, seed by seed."""
    groups: dict[tuple[str, str], Runs] = {}
    for row in rows:
        groups.setdefault((row["method"], row["variant"]), {})[row["seed"]] = row
    base = next((runs for key, runs in groups.items() if " ".join(key).strip() == against), None)
    if against and base is None:
        known = ", ".join(sorted(" ".join(key).strip() for key in groups))
        raise ValueError(f"there is no finished run of {against!r} to compare with: there are {known}")
    paper = preset(stream).get("paper", {})
    return [_line(*key, runs, base, paper.get(key[0], {})) for key, runs in groups.items()]


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


def header(against: str = "") -> list[str]:
    names = ["method", "variant", "seeds", "ACC", "BWT", "learned", "intransigence", "capacity used", "extra MB",
             "paper ACC", "paper BWT", "seconds"]  # fmt: skip
    return [*names, f"ACC to {against}"] if against else names


def cells(line: Line, against: str = "") -> list[str]:
    """A line as text, a cell for each name of the header."""

    def plus_minus(value: Spread) -> str:
        return f"{value[0]:.2f} ± {value[1]:.2f}" if line.seeds > 1 else f"{value[0]:.2f}"

    def figure(value: float | None, form: str = ".2f") -> str:
        return "" if value is None else format(value, form)

    texts = [
        line.method, line.variant, str(line.seeds), plus_minus(line.acc), plus_minus(line.bwt),
        f"{line.learning_acc:.2f}", figure(line.intransigence), figure(line.capacity, ".0%"),
        f"{line.extra_bytes / 1e6:.3g}", figure(line.paper_acc), figure(line.paper_bwt), f"{line.seconds:.0f}",
    ]  # fmt: skip
    if not against:
        return texts
    return [*texts, "" if line.difference is None else f"{line.difference[0]:+.2f} ± {line.difference[1]:.2f}"]


def to_markdown(lines: list[Line], against: str = "") -> str:
    names = header(against)
    table = [names, ["---"] * len(names), *(cells(line, against) for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in table) + "\n"


def to_terminal(lines: list[Line], stream: str, against: str = "") -> Table:
    table = Table(title=f"{stream}: mean ± standard deviation over seeds, percent")
    for name in header(against):
        table.add_column(name, justify="left" if name in ("method", "variant") else "right", overflow="fold")
    for line in lines:
        table.add_row(*cells(line, against))
    return table
