"""Accuracy: the matrix of a method, and each task over the sequence with methods side by side."""

from collections.abc import Iterable
from statistics import mean
from typing import Any

import numpy as np

from ...metrics import Spread, average_accuracy, backward_transfer, spread
from ..stored import StoredRun
from .axes import round_ticks, show_ticks
from .registry import Drawing, register_figure
from .style import INK, draw_line, grid_shape, headline, legend_below, shorten, wrapped
from .with_accuracies import Matrix, begun, deviations, mean_matrix, seeds_in_words


@register_figure(
    "matrix",
    "accuracy on each task after each task, a panel for each method",
    "Read down a column to see whether a task is forgotten, and along the diagonal how well each was learned.",
)
def matrix(runs: list[StoredRun]) -> Drawing:
    from matplotlib.figure import Figure

    groups = begun(runs, "matrix")
    matrices = {label: mean_matrix(group) for label, group in groups.items()}
    spreads = [deviations(group) if len(group) > 1 else [] for group in groups.values()]
    labels, common = shorten(list(groups))
    size = max(len(m) for m in matrices.values())
    rows, columns = grid_shape(len(groups), 4 if size <= 5 else 3)
    side = 0.34 * size + 0.5
    titles = [wrapped(label, side) for label in labels]
    above = 0.2 + 0.15 * max(len(lines) for lines in titles)
    figure = Figure(figsize=(max(3.4, columns * side + 0.7), rows * (side + above) + 0.4))
    panels = figure.subplots(rows, columns, squeeze=False)
    every = [value for m in matrices.values() for row in m for value in row]
    span = (min(99.0, float(np.floor(min(every)))), min(100.0, float(np.floor(max(every))) + 1))
    for axes, lines, found, off in zip(panels.flat, titles, matrices.values(), spreads, strict=False):
        shade = _matrix_panel(axes, found, off, size, span)
        axes.set_title("\n".join(lines), color=INK)
    for axes in list(panels.flat)[len(labels) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("after learning task")
    for axes in list(panels.flat)[max(0, len(labels) - columns) : len(labels)]:
        axes.set_xlabel("tested on task")
    figure.colorbar(shade, ax=panels, label="accuracy (%)", shrink=0.8, aspect=25)
    seeds = seeds_in_words(groups.values(), "below each mean")
    figure.suptitle(headline([runs[0].stream, common, seeds], figure.get_figwidth()), fontsize=9)
    best = {name: average_accuracy(m) for name, m in zip(labels, matrices.values(), strict=True)}
    words = "; ".join(f"{name}: {value:.2f} % at the end" for name, value in best.items())
    return Drawing(figure, f"Accuracy matrices. Mean over tasks: {words}.")


def _matrix_panel(axes: Any, found: Matrix, off: Matrix, size: int, span: tuple[float, float]) -> Any:
    """Each mean, and its standard deviation below it where ``off`` has one."""
    table = np.full((size, size), np.nan)
    for t, row in enumerate(found):
        table[t, : t + 1] = row
    shade = axes.imshow(table, cmap="cividis", vmin=span[0], vmax=span[1])
    for t, row in enumerate(found):
        for u, value in enumerate(row):
            dark = (value - span[0]) / (span[1] - span[0]) < 0.55
            style = {"ha": "center", "va": "center", "color": "white" if dark else INK}
            axes.text(u, t - (0.14 if off else 0), f"{value:.1f}" if value < 99.95 else "100", fontsize=7, **style)
            if off:
                axes.text(u, t + 0.25, f"±{off[t][u]:.1f}", fontsize=5, **style)
    axes.set_xticks(range(size), [str(u + 1) for u in range(size)])
    axes.set_yticks(range(size), [str(u + 1) for u in range(size)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return shade


@register_figure(
    "sequence",
    "accuracy on each task as later ones are learned, methods side by side",
    "A panel is a task, from the moment it is learned. A line that falls is a task that is being forgotten.",
)
def sequence(runs: list[StoredRun]) -> Drawing:
    from matplotlib.figure import Figure

    groups = begun(runs, "sequence")
    matrices = {label: mean_matrix(group) for label, group in groups.items()}
    spreads = [deviations(group) for group in groups.values()]
    labels, common = shorten(list(groups))
    size = max(len(m) for m in matrices.values())
    names = max((run.tasks for run in runs), key=len)
    rows, columns = grid_shape(size + 1, 6)
    figure = Figure(figsize=(max(4.5, 1.7 * columns + 0.6), 1.85 * rows + 0.5))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    so_far = [_running(group, len(m)) for group, m in zip(groups.values(), matrices.values(), strict=True)]
    for k, (label, found, off) in enumerate(zip(labels, matrices.values(), spreads, strict=True)):
        places = [t + 1 + _aside(k, len(labels)) for t in range(len(found))]
        for u, axes in enumerate(list(panels.flat)[: len(found)]):
            draw_line(axes, k, places[u:], [row[u] for row in found[u:]], [row[u] for row in off[u:]])
        means, bands = zip(*so_far[k], strict=True)
        draw_line(panels.flat[size], k, places, means, bands, label)
    for u, axes in enumerate(list(panels.flat)[:size]):
        axes.set_title("\n".join(wrapped(f"task {u + 1}: {names[u]}" if u < len(names) else f"task {u + 1}", 1.6)))
    panels.flat[size].set_title("mean of tasks\nso far", fontweight="bold")
    for axes in list(panels.flat)[size + 1 :]:
        axes.set_visible(False)
    pairs = list(zip(_entries(matrices.values()), _entries(spreads), strict=True))
    low, high = min(value - off for value, off in pairs), max(value for value, _ in pairs)
    show_ticks(panels[0, 0], "y", round_ticks(max(0.0, low), high, 5, 100.0))
    for axes in panels.flat:
        axes.grid(axis="y")
        axes.set_xticks(range(1, size + 1) if size <= 6 else range(1, size + 1, 3))
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy (%)")
    for axes in list(panels.flat)[size + 1 - columns : size + 1]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("tasks learned")
    legend_below(figure, most=3)
    seeds = seeds_in_words(groups.values(), "band")
    figure.suptitle(headline([runs[0].stream, common, seeds], figure.get_figwidth()), fontsize=9)
    words = "; ".join(
        f"{name} {average_accuracy(m):.2f} % at the end, changed by {backward_transfer(m):+.2f} since learned"
        for name, m in zip(labels, matrices.values(), strict=True)
    )
    return Drawing(figure, f"Accuracy on each task over the sequence. {words}.")


def _running(runs: list[StoredRun], tasks: int) -> list[Spread]:
    """The mean accuracy of the tasks so far after each task, with its deviation over seeds."""
    return [spread([mean(run.matrix[t]) for run in runs]) for t in range(tasks)]


def _aside(k: int, count: int) -> float:
    """How far the k-th of several methods stands beside the others, in tasks, so that marks do not cover each other."""
    return min(0.16, 0.6 / count) * (k - (count - 1) / 2)


def _entries(matrices: Iterable[Matrix]) -> list[float]:
    return [value for m in matrices for row in m for value in row]
