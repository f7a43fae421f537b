"""Draws docs/images/memory_cifar100_10.svg from results/: `python docs/memory_picture.py`.

ACC against memory for every method on ten-split CIFAR-100, the rows of results/cifar100_10.csv with the schedule that
most of them have.
"""

from collections import Counter
from pathlib import Path
from statistics import mean

import matplotlib

from bitfreeze.lab.results.figures.memory import Kept, draw_memory, is_ceiling
from bitfreeze.lab.results.figures.registry import Drawing
from bitfreeze.lab.results.figures.style import STYLE
from bitfreeze.lab.results.rows import from_csv
from bitfreeze.lab.results.table import Line, summarise
from bitfreeze.lab.runs.columns import memory_after_tasks

HERE = Path(__file__).parent
STREAM = "cifar100_10"


def lines() -> list[Line]:
    """The lines of the table with the settings that most of them have."""
    every = summarise(from_csv((HERE.parent / "results" / f"{STREAM}.csv").read_text()), STREAM)
    usual = Counter(line.variant for line in every).most_common(1)[0][0]
    return [line for line in every if line.variant == usual]


def kept(line: Line) -> Kept:
    sizes = [[count / 1e6 for count in memory_after_tasks(row)] for row in line.rows]
    return Kept(
        f"{line.method} {line.variant}".strip(),
        accuracies=[row["acc"] for row in line.rows],
        megabytes=[mean(column) for column in zip(*sizes, strict=True)],
        network=line.rows[0]["model_bytes"] / 1e6,
        is_reference=is_ceiling(line.method),
    )


def draw() -> Drawing:
    with matplotlib.rc_context(STYLE):
        return draw_memory("CIFAR-100 in ten tasks", [kept(line) for line in lines()])


def main(folder: Path = HERE / "images") -> None:
    drawing = draw()
    with matplotlib.rc_context(STYLE):
        drawing.figure.savefig(
            folder / f"memory_{STREAM}.svg",
            facecolor="white",
            metadata={"Date": None, "Description": drawing.words},
        )


if __name__ == "__main__":
    main()
