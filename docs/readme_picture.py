"""Draws docs/images/new_and_old.svg, the README's picture, from results/: `python docs/readme_picture.py`.

One point for each method with the settings of its preset, which were chosen on validation data: what the network
learned of the new tasks against what it kept of the old ones, the mean over seeds. Small marks are seeds. Marks of
methods that keep old data are hollow.
"""

import csv
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from bitfreeze.lab.results.figures.labels import label_marks
from bitfreeze.lab.results.figures.style import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, STYLE

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
NAMES = {
    "blip": "bitfreeze", "blip_lora": "bitfreeze, LoRA", "ft": "fine-tuning", "ewc": "EWC", "l2": "L2 to the start",
    "kl": "KL to the base", "wise": "averaging", "lora": "LoRA", "osf": "OSF", "ft_fix probe": "linear probe",
    "er": "replay 5 %", "er fifth": "replay 20 %",
}  # fmt: skip
STYLES: dict[str, dict[str, Any]] = {
    "blip": {"color": BLUE, "marker": "o", "markersize": 12}, "blip_lora": {"color": BLUE, "marker": "P"},
    "ft": {"color": ORANGE, "marker": "s"}, "ewc": {"color": GREEN, "marker": "^"},
    "l2": {"color": PINK, "marker": "D"},
    "kl": {"color": AMBER, "marker": "v"}, "wise": {"color": SKY, "marker": "P"},
    "lora": {"color": ORANGE, "marker": "X"},
    "osf": {"color": INK, "marker": "<"}, "ft_fix probe": {"color": GREY, "marker": "s"},
    "er": {"color": INK, "marker": "o", "markerfacecolor": "white"},
    "er fifth": {"color": INK, "marker": "D", "markerfacecolor": "white"},
}  # fmt: skip
Points = dict[str, list[tuple[float, float]]]  # method: new and old of each seed


def points(stream: str, new: str, old: str) -> Points:
    """Figures of two columns of a stream's results, of the methods and variants that have a name here."""
    found: Points = {}
    with (RESULTS / f"{stream}.csv").open() as file:
        for row in csv.DictReader(file):
            name = f"{row['method']} {row['variant']}".strip()
            if name in NAMES:
                found.setdefault(name, []).append((float(row[new]), float(row[old])))
    return found


def vision() -> Points:
    """Accuracy on a task when it is learned, and its mean change until the end, percent."""
    return points("vision5", "learning_acc", "bwt")


def text() -> Points:
    """Loss on the new texts when they are learned, and rise of the loss on stories, nats a token."""
    return points("text5", "new", "base_rise")


def means(seeds: list[tuple[float, float]]) -> tuple[float, float]:
    new, old = zip(*seeds, strict=True)
    return mean(new), mean(old)


def described(found: Points, digits: int) -> str:
    """The means in words, for those who do not see the picture, and for the test that finds it out of date."""
    return "; ".join(
        f"{NAMES[name]} ({len(seeds)}): " + ", ".join(f"{value:.{digits}f}" for value in means(seeds))
        for name, seeds in sorted(found.items())
    )


def description() -> str:
    return f"Pictures, learned and change: {described(vision(), 1)}. Text, loss and rise: {described(text(), 2)}."


def scatter(axes: Any, found: Points) -> None:
    for name, seeds in found.items():
        style = {"markersize": 8, "markeredgecolor": STYLES[name]["color"], **STYLES[name]}
        axes.plot(*means(seeds), **style, linestyle="none", zorder=3)
        if len(seeds) > 1:
            axes.plot(*zip(*seeds, strict=True), **{**style, "markersize": 3}, linestyle="none", alpha=0.6)


def label(axes: Any, found: Points) -> None:
    """Write the names of methods beside their marks, free of each other and of the marks of seeds."""
    names = list(found)
    seeds = [(seed, seed) for name in names for seed in found[name]]
    colours = [STYLES[name]["color"] for name in names]
    label_marks(axes, [means(found[name]) for name in names], [NAMES[name] for name in names], seeds, colours)


def draw() -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 4.2))
        left, right = figure.subplots(1, 2)
        scatter(left, vision())
        left.set(xlabel="new skill: accuracy on a task when it is learned, %")
        left.set_ylabel("old skill: change of that accuracy\nby the end, points")
        left.set_title("pictures: a pretrained EfficientNet-Lite0\nlearns five sets in turn", loc="left", color=INK)
        scatter(right, text())
        right.invert_xaxis()
        right.invert_yaxis()
        right.set(xlabel="new skill: loss on a new text when it is learned, nats a token")
        right.set_ylabel("old skill: rise of the loss\non stories, nats a token")
        right.set_title("text: a language model of 15 M parameters\nlearns five texts in turn", loc="left", color=INK)
        for axes in (left, right):
            axes.axhline(0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
            axes.margins(0.15)
            axes.text(
                0.02, 0.06, "higher: kept more\nfurther right: learned more\nhollow: keeps old data",
                transform=axes.transAxes, color=GREY,
            )  # fmt: skip
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # because labels are placed for good
        label(left, vision())
        label(right, text())
        return figure


def main(folder: Path = HERE / "images") -> None:
    figure = draw()
    with matplotlib.rc_context(STYLE):
        figure.savefig(
            folder / "new_and_old.svg", facecolor="white", metadata={"Date": None, "Description": description()}
        )


if __name__ == "__main__":
    main()
