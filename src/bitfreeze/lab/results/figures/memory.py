"""Accuracy against memory: what keeping costs, and whether the cost grows with the tasks."""

from statistics import mean

from ...methods import methods
from ...metrics import spread
from ..stored import StoredRun
from .axes import log_ticks, round_ticks, show_ticks
from .labels import label_marks
from .registry import Drawing, register_figure
from .style import GREY, fixed_figure, headline, line_style, shorten
from .with_accuracies import Ended, ended


@register_figure(
    "memory",
    "ACC against memory, network included; a thin line shows how memory grew with the tasks",
    "Higher keeps more, further left is cheaper. A long thin line is memory that grows with every task.",
)
def memory(runs: list[StoredRun]) -> Drawing:
    groups = ended(runs, "memory")
    labels, common = shorten(list(groups))
    sizes = [memory_after_tasks(group) for group in groups.values()]
    scores = [spread([each.result.acc for each in group]) for group in groups.values()]
    plain = {each.result.model_bytes / 1e6 for group in groups.values() for each in group}
    figure = fixed_figure(7.2, 4.1)
    axes = figure.add_axes((0.1, 0.13, 0.87, 0.76))
    axes.set_xscale("log")
    every = [size for found in sizes for size in found] + list(plain if len(plain) == 1 else ())
    show_ticks(axes, "x", log_ticks(min(every), max(every)))
    low, high = min(acc - off for acc, off in scores), max(acc + off for acc, off in scores)
    show_ticks(axes, "y", round_ticks(max(0.0, low), min(100.0, high), 7, 100.0))
    if len(plain) == 1:
        axes.axvline(*plain, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    words = []
    reference = [is_ceiling(group[0].run) for group in groups.values()]
    for k, (label, (acc, off), found, hollow) in enumerate(zip(labels, scores, sizes, reference, strict=True)):
        style = line_style(k)
        face = "white" if hollow else style["color"]
        axes.plot([found[0], found[-1]], [acc, acc], color=style["color"], linewidth=0.9, zorder=1)
        axes.plot(found[0], acc, "|", color=style["color"], markersize=6, zorder=1)
        bar = [[min(off, acc)], [min(off, 100 - acc)]] if off else None  # no accuracy is beyond 0 and 100
        axes.errorbar(found[-1], acc, bar, color=style["color"], linewidth=0.8, capsize=2, zorder=1)
        axes.plot(
            found[-1], acc, linestyle="", marker=style["marker"], markersize=6.5, markerfacecolor=face,
            markeredgecolor=style["color"], zorder=3,
        )  # fmt: skip
        grown = f"{found[0]:.3g} to {found[-1]:.3g} MB" if found[-1] > 1.005 * found[0] else f"{found[-1]:.3g} MB"
        words.append(f"{label}: ACC {acc:.2f} ± {off:.2f} at {grown}")
    ends = [(found[-1], acc) for found, (acc, _) in zip(sizes, scores, strict=True)]
    tails = [((found[0], acc), (found[-1], acc)) for found, (acc, _) in zip(sizes, scores, strict=True)]
    bars = [((x, acc - off), (x, acc + off)) for (x, acc), (_, off) in zip(ends, scores, strict=True)]
    label_marks(axes, ends, labels, tails + bars)
    axes.set_xlabel("memory after the last task: network, method and samples (MB)")
    axes.set_ylabel("ACC: accuracy after the last task (%)")
    axes.grid()
    line = "dots: network alone" if len(plain) == 1 else ""
    notes = ["thin line: from task 1 on", line, "hollow: reference points"]
    axes.set_title(headline([runs[0].stream, common, *notes], 6.4), loc="left")
    return Drawing(figure, "ACC against memory in the end, network included. " + "; ".join(words) + ".")


def memory_after_tasks(group: list[Ended]) -> list[float]:
    """MB of network, method and samples after each task, the mean over seeds."""
    rows = [
        [(each.result.model_bytes + task.extra_bytes + task.buffer_bytes) / 1e6 for task in each.run.learned]
        for each in group
    ]
    return [mean(column) for column in zip(*rows, strict=False)]


def is_ceiling(run: StoredRun) -> bool:
    """Whether the method is a reference point that nobody is asked to beat."""
    known = methods.get(run.method)
    return known is not None and known.record.ceiling
