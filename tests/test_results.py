"""The pages of results/ say what the CSV files beside them do."""

import runpy
from pathlib import Path

import pytest

from bitfreeze.experiments.rows import from_csv
from bitfreeze.experiments.table import to_page

RESULTS = Path(__file__).parent.parent / "results"
collect = runpy.run_path(str(RESULTS / "collect.py"))
TABLES = sorted(file for file in RESULTS.glob("*.csv") if not file.name.startswith("curves_"))


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_a_page_holds_the_figures_of_its_csv(file):
    prefix = next(prefix for prefix in collect["TITLES"] if file.stem.startswith(prefix))
    stream = file.stem.removeprefix(prefix)
    title = collect["TITLES"][prefix].format(stream)
    assert file.with_suffix(".md").read_text() == to_page(from_csv(file.read_text()), stream, title=title) + "\n"
