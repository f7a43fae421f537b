"""Makes examples/keep_a_skill.ipynb from examples/keep_a_skill.py, with what its cells print and draw:
`python docs/make_notebook.py`.

A cell begins with a line `# %%`, a cell of text with `# %% [markdown]`.
"""

import base64
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
Cell = dict[str, Any]


def cells_of(script: str) -> list[Cell]:
    """The cells of a script, without outputs."""
    parts = re.split(r"^# %%(.*)\n", script, flags=re.MULTILINE)[1:]
    cells = []
    for number, (kind, text) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        cell: Cell = {"id": f"cell-{number}", "metadata": {}}
        if "[markdown]" in kind:
            text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
            cell |= {"cell_type": "markdown"}
        else:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        cells.append(cell | {"source": text.strip().splitlines(keepends=True)})
    return cells


def run(cells: list[Cell]) -> dict[str, Any]:
    """Runs all cells in one session, and puts what each prints and draws below it. Returns the session."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    session: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            source = "".join(cell["source"]).replace("plt.show()", "")  # figures are collected below
            with contextlib.redirect_stdout(printed):
                exec(compile(source, cell["id"], "exec"), session)
            cell["outputs"] = _streams(printed.getvalue()) + [_picture(pyplot.figure(n)) for n in pyplot.get_fignums()]
            pyplot.close("all")
    return session


def _streams(printed: str) -> list[Cell]:
    return [{"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}] if printed else []


def _picture(figure: Any) -> Cell:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=90)
    return {
        "data": {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["<Figure>"]},
        "metadata": {},
        "output_type": "display_data",
    }


def notebook(cells: list[Cell]) -> str:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> None:
    cells = cells_of((EXAMPLES / "keep_a_skill.py").read_text())
    run(cells)
    (EXAMPLES / "keep_a_skill.ipynb").write_text(notebook(cells))


if __name__ == "__main__":
    main()
