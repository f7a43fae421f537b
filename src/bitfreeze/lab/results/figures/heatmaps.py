"""Frozen bits of each layer after each task, as pictures."""

from typing import TypeVar

import numpy as np

from ..bit_history import Array
from ..stored import StoredRun
from .bits_needed import bits_of
from .registry import Drawing, register_figure
from .style import BITS, headline, wrapped

T = TypeVar("T")
ROWS, COLUMNS, PIXELS = 6, 10, 160


@register_figure(
    "heatmaps",
    "frozen bits of each layer's weights after each task",
    "A cell is a weight and a row of cells a unit. Dark weights are free to move, yellow ones hardly move any more.",
    of_one_run=True,
    needs_bits=True,
)
def heatmaps(run: StoredRun) -> Drawing:
    from matplotlib.figure import Figure

    bits = bits_of(run, "heatmaps")
    names = _evenly(bits.weights, ROWS)
    tasks = _evenly(list(range(bits.tasks)), COLUMNS)
    figure = Figure(figsize=(max(4.0, 1.25 * len(tasks) + 1.3), 1.5 * len(names) + 0.9))
    panels = figure.subplots(len(names), len(tasks), squeeze=False)
    top = max(int(bits.bits(name, tasks[-1]).max()) for name in names)
    shrunk = False
    for row, name in zip(panels, names, strict=True):
        for axes, task in zip(row, tasks, strict=True):
            full = _flat(bits.bits(name, task))
            small = block_means(full, PIXELS)
            shrunk |= small.shape != full.shape
            shade = axes.imshow(small, cmap=BITS, vmin=0, vmax=max(1, top), aspect="auto", interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            axes.set_xlabel(f"mean {full.mean():.1f}", fontsize=7.5, labelpad=2)
        row[0].set_ylabel(f"{name.removesuffix('.weight')}\n{full.shape[0]} x {full.shape[1]}", fontsize=8)
    for axes, task in zip(panels[0], tasks, strict=True):
        name = run.tasks[task] if task < len(run.tasks) else ""
        axes.set_title("\n".join([f"after task {task + 1}", *wrapped(name, 1.15, 8)]), fontsize=8)
    figure.colorbar(shade, ax=panels, label=f"frozen bits (of {bits.depth})", shrink=0.9, aspect=30)
    left_out = len(bits.weights) - len(names)
    notes = [
        run.title,
        "a row a unit, a column an input" + ("; pixels are means of blocks" if shrunk else ""),
        f"{left_out} more layers not drawn" if left_out else "",
    ]
    figure.suptitle(headline(notes, figure.get_figwidth()), fontsize=9)
    means = ", ".join(f"{name} {_flat(bits.bits(name, tasks[-1])).mean():.1f}" for name in names)
    return Drawing(figure, f"Heat maps of frozen bits. Mean at the end: {means}.")


def block_means(values: Array, most: int) -> Array:
    """No more than ``most`` rows and columns, each the mean of a block."""
    rows, columns = (np.unique(np.linspace(0, n, min(n, most) + 1).astype(int)) for n in values.shape)
    sums = np.add.reduceat(np.add.reduceat(values.astype(np.float64), rows[:-1], 0), columns[:-1], 1)
    means: Array = sums / np.outer(np.diff(rows), np.diff(columns))
    return means


def _flat(values: Array) -> Array:
    """A row for each unit."""
    return values.reshape(values.shape[0], -1)


def _evenly(items: list[T], most: int) -> list[T]:
    """No more than ``most`` of them, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[int(k)] for k in np.linspace(0, len(items) - 1, most).round()]
