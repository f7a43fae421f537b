"""The pages of results/ say what the CSV files beside them do, and these agree with each other."""

import runpy
from itertools import groupby
from pathlib import Path

import pytest

from bitfreeze.experiments.rows import from_csv
from bitfreeze.experiments.table import to_page

RESULTS = Path(__file__).parent.parent / "results"
collect = runpy.run_path(str(RESULTS / "collect.py"))
DETAILS = ("curves_", "tasks_")
TABLES = sorted(file for file in RESULTS.glob("*.csv") if not file.name.startswith(DETAILS))


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_a_page_holds_the_figures_of_its_csv(file):
    prefix = next(prefix for prefix in collect["TITLES"] if file.stem.startswith(prefix))
    stream = file.stem.removeprefix(prefix)
    title = collect["TITLES"][prefix].format(stream)
    assert file.with_suffix(".md").read_text() == to_page(from_csv(file.read_text()), stream, title=title) + "\n"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("tasks_*.csv")), ids=lambda file: file.stem)
def test_a_runs_figures_are_the_means_over_its_tasks(file):
    def run(row):
        return row["method"], row["variant"], row["seed"]

    table = {run(row): row for row in from_csv((RESULTS / file.name.removeprefix("tasks_")).read_text())}
    for key, group in groupby(from_csv(file.read_text()), run):
        tasks = list(group)
        learned, end = (sum(task[name] for task in tasks) / len(tasks) for name in ("learned", "end"))
        assert learned == pytest.approx(table[key]["learning_acc"], abs=1e-3)
        assert end == pytest.approx(table[key]["acc"], abs=1e-3)
