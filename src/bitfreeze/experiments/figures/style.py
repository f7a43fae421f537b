"""What all figures have in common: colours that the colour-blind can tell apart, and never colour alone."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

# Okabe and Ito's palette, the ones that stand out on white first
BLUE, ORANGE, GREEN, PINK, AMBER, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, PALE = "#222222", "#767676", "#E4E4E4"
COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, INK)
MARKERS = ("o", "s", "^", "D", "v", "<", ">", "*")
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
    """Colour, mark and kind of line of the k-th of several lines: no two of the first 28 are alike in both."""
    return {
        "color": COLOURS[k % len(COLOURS)],
        "marker": MARKERS[k % len(MARKERS)],
        "linestyle": LINES[(k // len(COLOURS) + k) % len(LINES)],
        "markersize": 4.5,
        "linewidth": 1.4,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
    }


def shorten(labels: Sequence[str]) -> tuple[list[str], str]:
    """Labels without the settings that all of them share, and those settings."""
    words = [label.split() for label in labels]
    common = [word for word in words[0][1:] if all(word in other[1:] for other in words)] if len(words) > 1 else []
    return [" ".join(word for word in label if word not in common) for label in words], " ".join(common)


def headline(parts: Iterable[str], inches: float) -> str:
    """Words above a figure, in as many lines as its width asks for, and no more than three."""
    lines = textwrap.wrap(", ".join(part for part in parts if part), int(13 * inches), break_on_hyphens=False)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2]} ..."])


def grid_shape(count: int, across: int) -> tuple[int, int]:
    """Rows and columns for so many panels, as even as can be."""
    rows = -(-count // across)
    return rows, -(-count // rows)
