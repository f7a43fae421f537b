"""Draws docs/images/new_and_old.svg, the README's picture, from results/pretrained/: `python docs/readme_picture.py`.

One point for each method and rate that was run with default settings: what the network has learned of the new tasks
against what it has kept of the old ones, the mean over seeds.
"""

import csv
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from bitfreeze.lab.results.figures.style import BLUE, GREY, INK, ORANGE, STYLE

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "pretrained"
NAMES = {"blip": "bitfreeze", "ft": "fine-tuning"}
STYLES = {"blip": {"color": BLUE, "marker": "o"}, "ft": {"color": ORANGE, "marker": "s"}}
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
Points = dict[tuple[str, str], list[tuple[float, float]]]  # method and setting: new and old of each seed


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open() as file:
        return [row for row in csv.DictReader(file) if not row["settings"]]


def vision() -> Points:
    """Accuracy on a task when it is learned, and its mean change until the end; test data, percent."""
    points: Points = {}
    for row in rows("vision.csv"):
        if row["split"] == "test":
            key = row["method"], f"{OPTIMIZERS[row['optimizer']]} {row['lr']}"
            points.setdefault(key, []).append((float(row["learned"]), float(row["bwt"])))
    return points


def text() -> Points:
    """Loss on the new text, and rise of the loss on the old one; nats a token. Of a rate the last run."""
    latest = {(row["method"], f"AdamW {row['lr']}"): row for row in rows("text.csv")}
    return {key: [(float(row["new_after"]), float(row["base_rise"]))] for key, row in latest.items()}


def described(points: Points, digits: int) -> str:
    """The means in words, for those who do not see the picture, and for the test that finds it out of date."""
    parts = []
    for (method, setting), seeds in sorted(points.items()):
        new, old = (mean(side) for side in zip(*seeds, strict=True))
        parts.append(f"{NAMES[method]} with {setting} ({len(seeds)}): {new:.{digits}f}, {old:.{digits}f}")
    return "; ".join(parts)


def description() -> str:
    return f"Pictures, learned and change: {described(vision(), 1)}. Text, loss and rise: {described(text(), 2)}."


def scatter(axes: Any, points: Points, places: dict[tuple[str, str], tuple[int, int, str]]) -> None:
    for key, seeds in points.items():
        new, old = (mean(side) for side in zip(*seeds, strict=True))
        axes.plot(new, old, **STYLES[key[0]], markersize=9, markeredgecolor="white", linestyle="none", zorder=3)
        if len(seeds) > 1:
            axes.plot(*zip(*seeds, strict=True), **STYLES[key[0]], markersize=3, linestyle="none", alpha=0.6)
        right, up, side = places.get(key, (8, 0, "left"))
        colour = STYLES[key[0]]["color"]
        label = f"{NAMES[key[0]]}\n{key[1]}"
        axes.annotate(
            label,
            (new, old),
            (right, up),
            textcoords="offset points",
            ha=side,
            va="center",
            color=colour,
            linespacing=1.1,
        )


def draw() -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.7))
        left, right = figure.subplots(1, 2)
        scatter(
            left,
            vision(),
            {
                ("blip", "AdamW 0.001"): (0, -17, "center"),
                ("blip", "SGD 0.01"): (0, 17, "center"),
                ("ft", "SGD 0.001"): (0, -17, "center"),
                ("ft", "AdamW 0.001"): (-12, 0, "right"),
            },
        )
        left.set(xlim=(30, 80), ylim=(-40, 8), xlabel="new skill: accuracy on a task when it is learned, %")
        left.set_ylabel("old skill: change of that accuracy\nby the end, points")
        left.set_title("pictures: a pretrained EfficientNet-Lite0\nlearns four sets in turn", loc="left", color=INK)
        scatter(
            right,
            text(),
            {
                ("blip", "AdamW 0.0005"): (8, -15, "left"),
                ("blip", "AdamW 0.001"): (-8, -15, "right"),
                ("ft", "AdamW 0.0002"): (0, -17, "center"),
                ("ft", "AdamW 0.0005"): (10, 0, "left"),
            },
        )
        right.set(xlim=(5.9, 5.45), ylim=(3.6, -0.3), xlabel="new skill: loss on Shakespeare, nats a token")
        right.set_ylabel("old skill: rise of the loss\non stories, nats a token")
        right.set_title("text: a language model of 15 M parameters\nlearns Shakespeare", loc="left", color=INK)
        for axes in (left, right):
            axes.axhline(0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
            axes.text(
                0.02, 0.04, "higher: kept more\nfurther right: learned more", transform=axes.transAxes, color=GREY
            )
        return figure


def main(folder: Path = HERE / "images") -> None:
    figure = draw()
    with matplotlib.rc_context(STYLE):
        figure.savefig(
            folder / "new_and_old.svg", facecolor="white", metadata={"Date": None, "Description": description()}
        )


if __name__ == "__main__":
    main()
