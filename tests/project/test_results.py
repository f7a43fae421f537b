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
            assert end == [row[f"score {task['name']}"] for task in tasks]


def tables(page):
    """The tables of a page that have ACC and BWT, each as a list of rows by column."""
    for block in re.findall(r"(?:^ *\|.*\n)+", page.read_text(), re.MULTILINE):
        head, _, *lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        if {"ACC", "BWT"} <= set(head):
            yield [dict(zip(head, line, strict=True)) for line in lines]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "docs" / "explanation" / "benchmarks.md"], ids=lambda page: page.stem
)
def test_figures_that_are_quoted_are_in_the_tables(page):
    known = set()
    for file in TABLES:
        lines = summarise(from_csv(file.read_text()), parts(file)[1])
        known |= {(cells["ACC"], cells["BWT"]) for line in lines if "ACC" in (cells := line.cells())}
    short = {tuple(figure.partition(" ±")[0] for figure in pair) for pair in known}
    quoted = [(row["ACC"], row["BWT"]) for table in tables(page) for row in table if "intransigence" not in row]
    assert len(quoted) > 5
    assert set(quoted) <= short
