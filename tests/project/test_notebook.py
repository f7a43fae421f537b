"""The notebook of examples/ is its script, and both do what they promise."""

import json
from pathlib import Path

from support.checkout import ROOT
from support.scripts import script

make_notebook = script("docs/make_notebook")
SCRIPT = ROOT / "examples" / "keep_a_skill.py"
NOTEBOOK = ROOT / "examples" / "keep_a_skill.ipynb"


def without_outputs(cells: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in cell.items() if name != "outputs"} for cell in cells]


def test_the_notebook_has_the_cells_of_the_script() -> None:
    stored = json.loads(NOTEBOOK.read_text())
    made = make_notebook.cells_of(SCRIPT.read_text())
    assert without_outputs(stored["cells"]) == without_outputs(made), "run python docs/make_notebook.py"
    assert stored["nbformat"] == 4


def test_the_notebook_shows_its_plots_and_no_place_of_a_machine() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    printed = "".join(line for output in outputs for line in output.get("text", []))
    assert "along directions" in printed
    assert not any(place in printed for place in ("/home", "/root", "/tmp", "/work", str(Path.home())))


def test_the_cells_run_and_the_skill_is_kept() -> None:
    cells = make_notebook.cells_of(SCRIPT.read_text())
    session = make_notebook.run(cells)
    plain, kept = session["plain"], session["kept"]
    assert plain["old"][-1] < plain["old"][0] - 20
    assert kept["old"][-1] > kept["old"][0] - 4
    assert kept["new"][-1] > plain["new"][-1] - 3
    assert session["measured"][-1] < 0.05
    pictures = sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
    assert pictures == 3
