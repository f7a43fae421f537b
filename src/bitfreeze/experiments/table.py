"""A row a method, beside the paper's figures: mean and standard deviation over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from ..streams import streams
from . import scores
from .config import preset
from .rows import Row
from .scores import ScoreLine

# two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom
_T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]

PREFACE = """\
Accuracy in percent on samples that are kept for testing, mean ± standard deviation over seeds. ACC: after the last
task. BWT: its mean change since each task was learned (divided by T - 1). Learned: each task when it was learned.
Intransigence: how much less that is than joint training's. Seconds: wall time on one core, other work beside it.
Seeds are of training: the order of tasks and the samples held out are those of stream.seed, which is 0 throughout where
the variant does not say otherwise.
"""

Runs = dict[int, Row]  # by seed
Spread = tuple[float, float]  # mean and standard deviation


@dataclass(frozen=True)
class Line:
    """A method on a stream: over its seeds, and the paper's figures if it has any."""

    figure = "ACC"  # what methods are compared by
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

    def cells(self) -> dict[str, str]:
        return {
            "method": self.method,
            "variant": self.variant,
            "seeds": str(self.seeds),
            "ACC": _plus_minus(self.acc) if self.seeds > 1 else f"{self.acc[0]:.2f}",
            "BWT": _plus_minus(self.bwt) if self.seeds > 1 else f"{self.bwt[0]:.2f}",
            "learned": f"{self.learning_acc:.2f}",
            "intransigence": _figure(self.intransigence),
            "capacity used": _figure(self.capacity, ".0%"),
            "extra MB": f"{self.extra_bytes / 1e6:.3g}",
            "paper ACC": _figure(self.paper_acc),
            "paper BWT": _figure(self.paper_bwt),
            "seconds": f"{self.seconds:.0f}",
        }


Lines = Sequence[Line | ScoreLine]


def summarise(rows: list[Row], stream: str, against: str = "") -> "Lines":
    """``against``: a method that each is compared with, seed by seed, where it was run with the same settings of
    stream, network and training; or a method with its variant, as the table has it."""
    return list(_SUMMARIES[streams[stream].trainer](rows, stream, against))


def _accuracies(rows: list[Row], stream: str, against: str) -> list[Line]:
    groups, bases = _groups(rows, against)
    paper = preset(stream).get("paper", {})
    return [
        _line(*key, runs, bases.get(key), paper.get(key[0], {}) if _is_the_papers_stream(key) else {})
        for key, runs in groups.items()
    ]


def _is_the_papers_stream(key: "Key") -> bool:
    """Fewer tasks, or other samples to test on, are not."""
    return not any(word.startswith("stream.") for word in key[1].split())


def _scores(rows: list[Row], stream: str, against: str) -> list[ScoreLine]:
    groups, bases = _groups(scores.with_reward(rows), against)
    tasks = scores.tasks_of(rows)
    return [
        ScoreLine(*key, list(runs.values()), tasks, _paired(runs, bases.get(key), "reward"))
        for key, runs in groups.items()
    ]


_SUMMARIES: dict[str, Callable[[list[Row], str, str], Lines]] = {"supervised": _accuracies, "reinforcement": _scores}
_UNITS = {"supervised": "percent", "reinforcement": "raw scores"}
_PREFACES = {"supervised": PREFACE, "reinforcement": scores.PREFACE}

Key = tuple[str, str]  # method and variant


def preface(stream: str) -> str:
    """What the columns of a stream's table mean."""
    return _PREFACES[streams[stream].trainer]


def _groups(rows: list[Row], against: str) -> tuple[dict[Key, Runs], dict[Key, Runs | None]]:
    """The runs of each method and variant, and those that they are compared with."""
    groups: dict[Key, Runs] = {}
    for row in rows:
        groups.setdefault((row["method"], row["variant"]), {})[row["seed"]] = row
    bases = {key: _base(groups, key, against) for key in groups} if against else {}
    if against and not any(bases.values()):
        known = ", ".join(sorted(" ".join(key).strip() for key in groups))
        raise ValueError(f"there is no finished run of {against!r} to compare with: there are {known}")
    return groups, bases


def _base(groups: dict[Key, Runs], key: Key, against: str) -> Runs | None:
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
        average("capacity"), _paired(runs, base, "acc"), paper.get("acc"), paper.get("bwt"),
        spread("extra_bytes")[0] + spread("buffer_bytes")[0], spread("seconds")[0],
    )  # fmt: skip


def _paired(runs: Runs, base: Runs | None, name: str) -> Spread | None:
    """The mean difference of a figure over common seeds and half its 95 % confidence interval."""
    common = sorted(runs.keys() & base.keys()) if base is not None and base is not runs else []
    if base is None or len(common) < 2:
        return None
    differences = [runs[seed][name] - base[seed][name] for seed in common]
    t = _T95[min(len(differences) - 1, len(_T95)) - 1]
    return mean(differences), t * stdev(differences) / len(differences) ** 0.5


def grid(lines: Lines, against: str = "") -> tuple[list[str], list[list[str]]]:
    """The names of the columns and the cells of each line; columns in which nothing stands are left out."""
    columns = [line.cells() for line in lines]
    if against:
        columns = [
            {**cells, f"{line.figure} to {against} (± 95 %)": _plus_minus(line.difference)}
            for cells, line in zip(columns, lines, strict=True)
        ]
    every = list(dict.fromkeys(name for cells in columns for name in cells))
    names = [name for name in every if any(cells.get(name) for cells in columns)]
    return names, [[cells.get(name, "") for name in names] for cells in columns]


def _figure(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _plus_minus(value: Spread | None) -> str:
    return "" if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def to_markdown(lines: Lines, against: str = "") -> str:
    names, rows = grid(lines, against)
    table = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table) + "\n"


def to_page(rows: list[Row], stream: str, against: str = "", title: str = "") -> str:
    """The table as Markdown with all that is needed to judge and to repeat it."""
    return "\n".join(
        [
            f"# {title or stream}\n",
            preface(stream),
            to_markdown(summarise(rows, stream, against), against),
            *(f"Protocol{of}: {text}.\n" for of, text in _shared(rows, "protocol")),
            *(f"Versions{of}: {text}.\n" for of, text in _shared(rows, "environment")),
            "Each row of the CSV beside this page holds the command that made it. In brackets behind",
            "bitfreeze's version stands a digest of its source.",
        ]
    )


def _shared(rows: list[Row], name: str) -> list[tuple[str, str]]:
    """What rows say under a name, each text once, with the methods that it is of where there are several."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row[name], set()).add(row["method"])
    several = len(found) > 1
    return sorted((f" of {', '.join(sorted(of))}" if several else "", text) for text, of in found.items() if text)


def to_terminal(lines: Lines, stream: str, against: str = "") -> Table:
    names, rows = grid(lines, against)
    table = Table(
        title=f"{stream}: {_UNITS[streams[stream].trainer]}, mean ± standard deviation over seeds", box=SIMPLE
    )
    for name in names:
        table.add_column(name, justify="left" if name in ("method", "variant") else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
