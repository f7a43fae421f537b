"""New skill against base skill: what a method learns against what is left of the first task, a point a setting."""

from dataclasses import dataclass
from statistics import mean

from ...metrics import spread
from ...runs.kinds import kind_of
from ..grouping import grouped
from ..stored import StoredRun
from .axes import round_ticks, show_ticks
from .registry import Drawing, register_figure
from .style import GREY, headline, legend_below, line_style, shorten


@dataclass(frozen=True)
class _Axes:
    """How the figures of a kind of training are shown. Better is up and to the right."""

    base: str
    new: str
    less_is_better: bool
    form: str
    most: float | None = None  # that can be learned


_AXES = {
    "accuracy": _Axes(
        "first task: change since it was learned (points)",
        "later tasks when learned: accuracy (%)",
        False,
        ".2f",
        most=100.0,
    ),
    "loss": _Axes("base: rise of the loss (nats a token)", "new texts when learned: loss (nats a token)", True, ".3f"),
}


@register_figure(
    "skills",
    "what is left of the first task, or of a pretrained base, against what is learned after it",
    "Up and to the right is better: more is learned, and less of the base is lost. Bars are deviations over seeds.",
)
def skills(runs: list[StoredRun]) -> Drawing:
    from matplotlib.figure import Figure

    shown = _AXES.get(kind_of(runs[0].stream).matrix)
    if shown is None:
        raise ValueError("skills shows accuracies or losses, and these are runs of games: draw 'scores' or 'reward'")
    ended = [run for run in runs if run.result is not None and len(run.matrix) > 1]
    if not ended:
        raise ValueError("skills needs finished runs of two tasks at least: there is none among these")
    groups = grouped(ended, lambda run: run.label)
    labels, common = shorten(list(groups))
    figure = Figure(figsize=(7.2, 4.2))
    axes = figure.subplots()
    words, ends_of_base, ends_of_new = [], [0.0], list[float]()
    for k, (label, group) in enumerate(zip(labels, groups.values(), strict=True)):
        (base, base_off), (new, new_off) = (spread(values) for values in zip(*map(_point, group), strict=True))
        style = line_style(k)
        axes.errorbar(
            base, new, new_off or None, base_off or None, label=label, color=style["color"], marker=style["marker"],
            markersize=8, linestyle="", linewidth=0.8, elinewidth=0.8, markeredgecolor="white",
        )  # fmt: skip
        ends_of_base += [base - base_off, base + base_off]
        ends_of_new += [new - new_off, new + new_off]
        words.append(f"{label}: {base:+{shown.form}} against {new:{shown.form}}")
    show_ticks(axes, "x", round_ticks(min(ends_of_base), max(ends_of_base)))
    show_ticks(axes, "y", round_ticks(min(ends_of_new), max(ends_of_new), 5, shown.most))
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    if shown.less_is_better:
        axes.invert_xaxis()
        axes.invert_yaxis()
    axes.set_xlabel(shown.base)
    axes.set_ylabel(shown.new)
    axes.grid()
    axes.set_title(headline([runs[0].stream, common, "better is up and to the right"], 6.0))
    legend_below(figure)
    return Drawing(figure, f"{shown.base} against {shown.new}. " + "; ".join(words) + ".")


def _point(run: StoredRun) -> tuple[float, float]:
    """The change of the first task since it was learned, and the mean of the later ones, each when it was learned."""
    matrix = run.matrix
    return matrix[-1][0] - matrix[0][0], mean(matrix[t][t] for t in range(1, len(matrix)))
