"""The style of all figures: colours that the colour-blind can tell apart, and marks besides colour."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

# Okabe and Ito's palette, the ones that stand out on white first
BLUE, ORANGE, GREEN, PINK, AMBER, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, PALE = "#222222", "#767676", "#E4E4E4"
COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "<", "X", ">", "*")
LINES = ("-", "--", "-.", ":")
BITS = "cividis"  # of frozen bits: even in lightness, so that it reads in grey too

STYLE: Any = {
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # names come from files, and a $ is a $
    "svg.hashsalt": "bitfreeze",
    "svg.fonttype": "none",  # text stays text: small, and can be searched and edited
}


def line_style(k: int) -> dict[str, Any]:
    """Colour, mark and kind of line of the k-th of several lines.

    No two of the first 28 share colour and kind of line, and no two of the first 70 share colour and mark.
    """
    return {
        "color": COLOURS[k % len(COLOURS)],
        "marker": MARKERS[k % len(MARKERS)],
        "linestyle": LINES[k % len(LINES)],
        "markersize": 4.5,
        "linewidth": 1.4,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
    }


def draw_line(axes: Any, k: int, x: Sequence[float], y: Sequence[float], off: Sequence[float], label: str = "") -> None:
    """The k-th of several lines, with a band of the standard deviation ``off`` where there is one."""
    style = line_style(k)
    axes.plot(x, y, **style, label=label or None)
    if any(off):
        low, high = [v - d for v, d in zip(y, off, strict=True)], [v + d for v, d in zip(y, off, strict=True)]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def fixed_figure(width: float, height: float) -> Any:
    """A figure whose panels stay where they are put, in inches. No layout is computed, which takes most of the time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("none")
    return figure


def shorten(labels: Sequence[str]) -> tuple[list[str], str]:
    """Labels without the settings that all of them share, and those settings."""
    words = [label.split() for label in labels]
    common = [word for word in words[0][1:] if all(word in other[1:] for other in words)] if len(words) > 1 else []
    return [" ".join(word for word in label if word not in common) for label in words], " ".join(common)


def wrapped(text: str, inches: float, points: float = 9) -> list[str]:
    """Text in lines that fit into a width, by what letters of that size take on average."""
    return textwrap.wrap(text, max(8, int(117 * inches / points)), break_on_hyphens=False)


def headline(parts: Iterable[str], inches: float) -> str:
    """Words above a figure, in as many lines as its width asks for, and no more than three."""
    lines = wrapped(", ".join(part for part in parts if part), inches)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2]} ..."])


def legend_below(figure: Any, handles: Sequence[Any] = (), most: int = 4) -> None:
    """Below the panels, which it takes no room from: in as many columns as its words leave room for, and wrapped where
    they are wider than the figure."""
    handles = handles or [handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]]
    room, key = figure.get_figwidth() - 0.2, 0.6  # inches, and what the mark of a label takes
    labels = ["\n".join(wrapped(handle.get_label(), room - key, 8)) for handle in handles]
    widest = max(len(line) for label in labels for line in label.split("\n")) * 8 / 117 + key
    columns = max(1, min(most, len(labels), int(room / widest)))
    rows = [labels[k::columns] for k in range(columns)]
    lines = max(sum(label.count("\n") + 1 for label in column) for column in rows)
    figure.set_figheight(figure.get_figheight() + 0.16 * lines)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def grid_shape(count: int, across: int) -> tuple[int, int]:
    """Rows and columns for so many panels, as even as can be."""
    rows = -(-count // across)
    return rows, -(-count // rows)
