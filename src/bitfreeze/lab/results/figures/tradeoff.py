"""What each method keeps and what that costs, in a row for each method, so that no two marks meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ...metrics import spread
from ..stored import StoredRun
from .axes import log_ticks, round_ticks, show_ticks
from .memory import is_ceiling, memory_after_tasks
from .registry import Drawing, register_figure
from .style import GREY, PALE, fixed_figure, headline, line_style, shorten, wrapped
from .with_accuracies import Ended, ended, seeds_in_words

WIDTH = 7.4  # inches
ROW, TOP, BOTTOM = 0.3, 0.42, 0.62  # inches: of a method, and above and below all of them
LABELS = (0.6, 2.6)  # inches: least and most for the names of methods


@dataclass(frozen=True)
class Panel:
    title: str
    value: Callable[[Ended], float]
    is_log: bool = False
    most: float | None = None


PANELS = (
    Panel("ACC: accuracy\nin the end (%)", lambda each: each.result.acc, most=100.0),
    Panel("BWT: change since\nlearned (points)", lambda each: each.result.bwt),
    Panel("memory in the end,\nnetwork included (MB)", lambda each: memory_after_tasks([each])[-1], is_log=True),
    Panel("time\n(seconds)", lambda each: each.result.seconds, is_log=True),
)


@register_figure(
    "tradeoff",
    "a row for each method: ACC, BWT, memory and time, with every seed",
    "The best method is at the top. Further right is better in the first two panels and dearer in the last two.",
)
def tradeoff(runs: list[StoredRun]) -> Drawing:
    groups = ended(runs, "tradeoff")
    names, common = shorten(list(groups))
    found = [(line_style(k), name, group) for k, (name, group) in enumerate(zip(names, groups.values(), strict=True))]
    found.sort(key=lambda row: -mean(each.result.acc for each in row[2]))
    left = min(LABELS[1], max(LABELS[0], 0.068 * max(map(len, names)) + 0.15))
    labels = ["\n".join(wrapped(name, left, 8)) for _, name, _ in found]
    heights = [max(ROW, 0.14 * (label.count("\n") + 1) + 0.08) for label in labels]
    height = sum(heights) + TOP + BOTTOM
    figure = fixed_figure(WIDTH, height)
    grid = {"left": left / WIDTH, "right": 0.985, "top": 1 - TOP / height, "bottom": BOTTOM / height, "wspace": 0.12}
    panels = figure.subplots(1, len(PANELS), sharey=True, gridspec_kw=grid)
    places = [-sum(heights[:k]) - heights[k] / 2 for k in range(len(found))]
    for axes, panel in zip(panels, PANELS, strict=True):
        _panel(axes, panel, [(style, place, group) for (style, _, group), place in zip(found, places, strict=True)])
    panels[0].set_ylim(-sum(heights), 0)
    panels[0].set_yticks(places, labels)
    seeds = seeds_in_words(groups.values(), "stroke: a seed, bar")
    title = headline([runs[0].stream, common, seeds, "hollow: reference points"], WIDTH - 0.2)
    figure.suptitle(title, fontsize=9, x=0.02, y=1 - 0.06 / height, ha="left", va="top")
    words = "; ".join(f"{name}: {_in_words(group)}" for _, name, group in found)
    return Drawing(figure, f"Methods by accuracy in the end, the best first. {words}.")


def _panel(axes: Any, panel: Panel, rows: Sequence[tuple[dict[str, Any], float, list[Ended]]]) -> None:
    """The mean of each method as a mark, its standard deviation as a bar, and each seed as a small stroke."""
    if panel.is_log:
        axes.set_xscale("log")
    ends = []
    for style, place, group in rows:
        values = [panel.value(each) for each in group]
        middle, off = spread(values)
        face = "white" if is_ceiling(group[0].run.method) else style["color"]
        axes.axhline(place, color=PALE, linewidth=0.8, zorder=0)
        axes.plot(values, [place] * len(values), "|", color=style["color"], markersize=8, markeredgewidth=0.8, zorder=1)
        axes.errorbar(middle, place, xerr=off or None, color=style["color"], linewidth=1.2, zorder=2)
        axes.plot(
            middle, place, marker=style["marker"], markersize=6, markerfacecolor=face, markeredgecolor=style["color"],
            zorder=3,
        )  # fmt: skip
        low = min(values) if panel.is_log and off >= middle else min(*values, middle - off)
        high = max(*values, middle + off)
        ends += [low, high if panel.most is None else min(panel.most, high)]
    ticks = log_ticks(min(ends), max(ends)) if panel.is_log else round_ticks(min(ends), max(ends), 4, panel.most)
    show_ticks(axes, "x", ticks, 0.06)
    if ticks[0] < 0 <= ticks[-1]:
        axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_xlabel(panel.title, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)


def _in_words(group: list[Ended]) -> str:
    means = [mean(panel.value(each) for each in group) for panel in PANELS]
    return "ACC {:.2f}, BWT {:+.2f}, {:.3g} MB, {:.0f} s".format(*means)
