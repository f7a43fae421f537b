"""The pages of results/ say what the CSV files beside them do, and these agree with each other."""

import re
import runpy
from itertools import groupby
from statistics import mean

import pytest

from bitfreeze.lab.results.rows import from_csv
from bitfreeze.lab.results.table import summarise, to_page
from support.checkout import ROOT

RESULTS = ROOT / "results"
collect = runpy.run_path(str(RESULTS / "collect.py"))
DETAILS = ("curves_", "tasks_")
TABLES = sorted(file for file in RESULTS.glob("*.csv") if not file.name.startswith(DETAILS))


def parts(file):
    """The kind of page, and the stream."""
    prefix = next(prefix for prefix in collect["TITLES"] if file.stem.startswith(prefix))
    return prefix, file.stem.removeprefix(prefix)


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_a_page_holds_the_figures_of_its_csv(file):
    prefix, stream = parts(file)
    title = collect["TITLES"][prefix].format(stream)
    assert file.with_suffix(".md").read_text() == to_page(from_csv(file.read_text()), stream, title=title) + "\n"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("tasks_*.csv")), ids=lambda file: file.stem)
def test_a_runs_figures_are_the_means_over_its_tasks(file):
    def run(row):
        return row["method"], row["variant"], row["seed"]

    table = {run(row): row for row in from_csv((RESULTS / file.name.removeprefix("tasks_")).read_text())}
    for key, group in groupby(from_csv(file.read_text()), run):
        tasks = list(group)
        learned = [task[f"after {task['task'] + 1}"] for task in tasks]
        end = [task[f"after {len(tasks)}"] for task in tasks]
        row = table[key]
        if "acc" in row:
            assert mean(learned) == pytest.approx(row["learning_acc"], abs=1e-3)
            assert mean(end) == pytest.approx(row["acc"], abs=1e-3)
        else:
            assert learned == [row[f"learned {task['name']}"] for task in tasks]
            last = "final" if "loss" in row else "score"
            assert end == [row[f"{last} {task['name']}"] for task in tasks]


def tables(page):
    """The tables of a page that have ACC and BWT, each as a list of rows by column."""
    for block in re.findall(r"(?:^ *\|.*\n)+", page.read_text(), re.MULTILINE):
        head, _, *lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        if {"ACC", "BWT"} <= set(head):
            yield [dict(zip(head, line, strict=True)) for line in lines]


QUOTING = [ROOT / "docs" / "explanation" / "benchmarks.md", ROOT / "docs" / "reproduction.md"]


@pytest.mark.parametrize("page", QUOTING, ids=lambda page: page.stem)
def test_figures_that_are_quoted_are_in_the_tables(page):
    quoted = [(row["ACC"], row["BWT"]) for table in tables(page) for row in table if "intransigence" not in row]
    assert len(quoted) > 5
    assert set(quoted) <= measured()


def measured():
    """ACC and BWT of every line of the tables, without their spread."""
    known = set()
    for file in TABLES:
        lines = summarise(from_csv(file.read_text()), parts(file)[1])
        known |= {(cells["ACC"], cells["BWT"]) for line in lines if "ACC" in (cells := line.cells())}
    return {tuple(figure.partition(" ±")[0] for figure in pair) for pair in known}


def pretrained():
    """Means over seeds of pretrained networks, not rounded: ACC and BWT, or mean loss and the rise of the base's."""
    for stream, names in (("vision5", ("acc", "bwt")), ("text5", ("loss", "base_rise"))):
        groups = {}
        for row in from_csv((RESULTS / f"{stream}.csv").read_text()):
            groups.setdefault((row["method"], row["variant"]), []).append(row)
        for seeds in groups.values():
            yield tuple(mean(row[name] for row in seeds) for name in names)


def rounds_to(figure, value):
    """Whether a figure is this value, to the last digit that it has."""
    return abs(float(figure) - value) <= 0.5 * 10.0 ** -len(figure.partition(".")[2]) + 1e-9


def test_the_readmes_evidence_is_in_results():
    quoted = set(re.findall(r"\| (\d+\.\d+) \((-?\d+\.\d+)\)", (ROOT / "README.md").read_text()))
    assert len(quoted) > 7
    for pair in quoted - measured():
        assert any(all(map(rounds_to, pair, values)) for values in pretrained()), pair
