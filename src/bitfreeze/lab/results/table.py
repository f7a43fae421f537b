"""The summary of a stream: a line for each method over its seeds, beside the paper's figures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean
from typing import Any

from ..methods import methods
from ..metrics import Spread, interval, spread
from ..runs.columns import Row, Shown, common_changes, memory_after_tasks, values_of, with_values_among
from ..runs.kinds import kind_of
from .grouping import grouped
from .latex import to_latex
from .rows import to_csv

Key = tuple[str, str]  # method and variant


@dataclass(frozen=True)
class Line:
    """The runs of one method and variant: a row for each seed."""

    rows: Sequence[Row]
    columns: Mapping[str, Shown]  # by title
    compared_with: str = ""
    difference: Spread | None = None  # to what the line is compared with, and half its 95 % interval

    @property
    def method(self) -> str:
        return str(self.rows[0]["method"])

    @property
    def variant(self) -> str:
        return str(self.rows[0]["variant"])

    @property
    def competes(self) -> bool:
        """Whether the method is a rival, and no reference point such as joint training."""
        known = methods.get(self.method)
        return known is None or not known.record.ceiling

    def cells(self) -> dict[str, str]:
        """What the line shows, by the titles of the columns."""
        cells = {title: shown.cell(self.rows, shown.name) for title, shown in self.columns.items()}
        off = "" if self.difference is None else f"{self.difference[0]:.2f} ± {self.difference[1]:.2f}"
        return cells | ({f"{self.compared_with} (± 95 %)": off} if self.compared_with else {})

    def figures(self) -> dict[str, dict[str, float]]:
        """Mean and standard deviation over seeds by the names of the columns, of those with numbers."""
        names = [shown.name for shown in self.columns.values() if shown.name not in ("method", "variant", "seed")]
        names += ["buffer_bytes"] if "extra_bytes" in names else []  # together they are the table's extra MB
        values = {name: values_of(self.rows, name) for name in names}
        spreads = {name: spread(found) for name, found in values.items() if found}
        return {name: {"mean": round(m, 6), "deviation": round(s, 6)} for name, (m, s) in spreads.items()}


def summarise(rows: Sequence[Row], stream: str, against: str = "") -> list[Line]:
    """A line for each method and variant.

    ``against`` names a method that every line is compared with, seed by seed, where that method was run with the same
    settings of stream, network and training; or a method with its variant, as the table has it.
    """
    kind = kind_of(stream)
    rows = with_values_among(rows, [column for column in kind.columns if not column.in_csv], stream)
    columns = {title: shown for column in kind.columns for title, shown in column.shown(rows).items()}
    groups = grouped(rows, lambda row: (row["method"], row["variant"]))
    bases = {key: _base(groups, key, against) for key in groups}
    if against and not any(bases.values()):
        known = ", ".join(sorted(" ".join(key).strip() for key in groups))
        raise ValueError(f"there is no finished run of {against!r} to compare with: there are {known}")
    figure = next((title for title, shown in columns.items() if shown.name == kind.compared_by), "")
    compared_with = f"{figure} to {against}" if against else ""
    return [
        Line(group, columns, compared_with, _difference(group, bases[key], kind.compared_by))
        for key, group in groups.items()
    ]


def _base(groups: Mapping[Key, Sequence[Row]], key: Key, against: str) -> Sequence[Row]:
    """The rows that those of ``key`` are compared with."""
    method, _, variant = against.partition(" ")
    return groups.get((method, variant or " ".join(common_changes(key[1].split()))), [])


def _difference(rows: Sequence[Row], base: Sequence[Row], name: str) -> Spread | None:
    """The mean difference of a figure over common seeds and half its 95 % confidence interval."""
    theirs = {row["seed"]: row[name] for row in base} if base is not rows else {}
    differences = [row[name] - theirs[row["seed"]] for row in rows if row["seed"] in theirs]
    return interval(differences) if len(differences) > 1 else None


def grid(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """The titles of the columns, and the cells of each line. Columns without any entry are left out."""
    cells = [line.cells() for line in lines]
    titles = [title for title in (cells[0] if cells else ()) if any(line[title] for line in cells)]
    return titles, [[line[title] for title in titles] for line in cells]


def best_lines(lines: Sequence[Line], title: str) -> set[int]:
    """The lines with the best mean of a column, all of those that show the same mean; none in a column without a best.

    Methods that show what is possible, such as joint training, are no rivals.
    """
    better = lines[0].columns[title].better if title in lines[0].columns else 0
    rivals = {
        k: values_of(line.rows, line.columns[title].name) for k, line in enumerate(lines) if better and line.competes
    }
    means = {k: mean(values) for k, values in rivals.items() if values}
    if not means:
        return set()
    best = max(means, key=lambda k: better * means[k])
    shown = [line.cells()[title].partition(" ±")[0] for line in lines]
    return {k for k in means if shown[k] == shown[best]}


def to_markdown(lines: Sequence[Line]) -> str:
    titles, rows = grid(lines)
    table = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table) + "\n"


def to_page(rows: Sequence[Row], stream: str, against: str = "", title: str = "") -> str:
    """The table as Markdown with all that is needed to judge and to repeat it."""
    return "\n".join(
        [
            f"# {title or stream}\n",
            kind_of(stream).preface,
            to_markdown(summarise(rows, stream, against)),
            *(f"Protocol{of}: {text}.\n" for of, text in _shared(rows, "protocol")),
            *(f"Versions{of}: {text}.\n" for of, text in _shared(rows, "environment")),
            "Each row of the CSV beside this page holds the command that made it. In brackets behind",
            "bitfreeze's version stands a digest of its source.",
        ]
    )


def _shared(rows: Sequence[Row], name: str) -> list[tuple[str, str]]:
    """Each text of a column once. Where there are several texts, the methods of each stand before it."""
    texts = {text: sorted({row["method"] for row in group}) for text, group in grouped(rows, lambda r: r[name]).items()}
    return sorted((f" of {', '.join(of)}" if len(texts) > 1 else "", text) for text, of in texts.items() if text)


@dataclass(frozen=True)
class Table:
    """Finished runs of a stream. As a text it is the summary in Markdown.

    Attributes:
        stream: Name of the stream.
        rows: A row for each run, by the names of the columns of the CSV.
        against: Name of the method that every line is compared with; empty for none.
    """

    stream: str
    rows: list[Row]
    against: str = ""

    @cached_property
    def lines(self) -> list[Line]:
        """A line for each method and variant, over its seeds."""
        return summarise(self.rows, self.stream, self.against)

    @property
    def title(self) -> str:
        return f"{self.stream}: {kind_of(self.stream).unit}, mean ± standard deviation over seeds"

    def __str__(self) -> str:
        return to_markdown(self.lines)

    def to_csv(self) -> str:
        """A row for each run as CSV."""
        return to_csv(self.rows)

    def to_page(self) -> str:
        """The summary as a page of Markdown, with protocol and versions."""
        return to_page(self.rows, self.stream, self.against)

    def to_latex(self) -> str:
        """The summary as a table of LaTeX with the package booktabs, the best figure of each column in bold."""
        titles, rows = grid(self.lines)
        return to_latex(titles, rows, {(k, title) for title in titles for k in best_lines(self.lines, title)})

    def to_json(self) -> str:
        """The summary and the runs as JSON: `lines` has a record for each method and variant, `runs` one a run."""
        lines = [_record(line) for line in self.lines]
        runs = [row | {"memory_by_task": memory_after_tasks(row)} for row in self.rows]
        unit = kind_of(self.stream).unit
        return json.dumps({"stream": self.stream, "unit": unit, "lines": lines, "runs": runs}, indent=2)


def _record(line: Line) -> dict[str, Any]:
    """A line of the summary as plain values."""
    record: dict[str, Any] = {"method": line.method, "variant": line.variant}
    record |= {"seeds": [row["seed"] for row in line.rows], "figures": line.figures()}
    if line.difference is not None:
        record["difference"] = {"to": line.compared_with, "mean": line.difference[0], "half_95": line.difference[1]}
    return record
