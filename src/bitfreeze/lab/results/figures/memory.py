"""Accuracy against memory: what keeping costs, and whether the cost grows with the tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ...methods import methods
from ...metrics import Spread, spread
from ..stored import StoredRun
from .axes import log_ticks, round_ticks, show_ticks
from .labels import label_marks
from .registry import Drawing, register_figure
from .style import GREY, fixed_figure, headline, line_style, shorten
from .with_accuracies import Ended, ended


@dataclass(frozen=True)
class Kept:
    """What a method and setting keeps, over its seeds."""

    label: str
    accuracies: Sequence[float]  # ACC of each seed
    megabytes: Sequence[float]  # network, method and samples after each task
    network: float  # MB of the network alone
    is_reference: bool  # a reference point that nobody is asked to beat

    @property
    def acc(self) -> Spread:
        return spread(self.accuracies)

    def in_words(self, label: str) -> str:
        acc, off = self.acc
        first, last = self.megabytes[0], self.megabytes[-1]
        grown = f"{first:.3g} to {last:.3g} MB" if last > 1.005 * first else f"{last:.3g} MB"
        return f"{label}: ACC {acc:.2f} ± {off:.2f} at {grown}"


@register_figure(
    "memory",
    "ACC against memory, network included; a thin line shows how memory grew with the tasks",
    "Higher keeps more, further left is cheaper. A long thin line is memory that grows with every task.",
)
def memory(runs: list[StoredRun]) -> Drawing:
    groups = ended(runs, "memory")
    return draw_memory(runs[0].stream, [_kept(label, group) for label, group in groups.items()])


def _kept(label: str, group: list[Ended]) -> Kept:
    return Kept(
        label,
        accuracies=[each.result.acc for each in group],
        megabytes=memory_after_tasks(group),
        network=group[0].result.model_bytes / 1e6,
        is_reference=is_ceiling(group[0].run.method),
    )


def memory_after_tasks(group: list[Ended]) -> list[float]:
    """MB of network, method and samples after each task, the mean over seeds."""
    rows = [
        [(each.result.model_bytes + task.extra_bytes + task.buffer_bytes) / 1e6 for task in each.run.learned]
        for each in group
    ]
    return [mean(column) for column in zip(*rows, strict=False)]


def is_ceiling(method: str) -> bool:
    """Whether a method is a reference point that nobody is asked to beat."""
    known = methods.get(method)
    return known is not None and known.record.ceiling


def draw_memory(stream: str, kept: Sequence[Kept]) -> Drawing:
    """A mark for each method and setting, and a thin line from where its memory began."""
    labels, common = shorten([each.label for each in kept])
    plain = {each.network for each in kept}
    figure = fixed_figure(7.2, 4.1)
    axes = figure.add_axes((0.1, 0.13, 0.87, 0.76))
    axes.set_xscale("log")
    every = [size for each in kept for size in each.megabytes] + list(plain if len(plain) == 1 else ())
    show_ticks(axes, "x", log_ticks(min(every), max(every)))
    scores = [each.acc for each in kept]
    low, high = min(acc - off for acc, off in scores), max(acc + off for acc, off in scores)
    show_ticks(axes, "y", round_ticks(max(0.0, low), min(100.0, high), 7, 100.0))
    if len(plain) == 1:
        axes.axvline(*plain, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    for k, (each, (acc, off)) in enumerate(zip(kept, scores, strict=True)):
        style = line_style(k)
        first, last = each.megabytes[0], each.megabytes[-1]
        axes.plot([first, last], [acc, acc], color=style["color"], linewidth=0.9, zorder=1)
        axes.plot(first, acc, "|", color=style["color"], markersize=6, zorder=1)
        bar = [[min(off, acc)], [min(off, 100 - acc)]] if off else None  # no accuracy is beyond 0 and 100
        axes.errorbar(last, acc, bar, color=style["color"], linewidth=0.8, capsize=2, zorder=1)
        axes.plot(
            last, acc, linestyle="", marker=style["marker"], markersize=6.5,
            markerfacecolor="white" if each.is_reference else style["color"],
            markeredgecolor=style["color"], zorder=3,
        )  # fmt: skip
    ends = [(each.megabytes[-1], acc) for each, (acc, _) in zip(kept, scores, strict=True)]
    tails = [((each.megabytes[0], y), (x, y)) for each, (x, y) in zip(kept, ends, strict=True)]
    bars = [((x, acc - off), (x, acc + off)) for (x, acc), (_, off) in zip(ends, scores, strict=True)]
    label_marks(axes, ends, labels, tails + bars)
    axes.set_xlabel("memory after the last task: network, method and samples (MB)")
    axes.set_ylabel("ACC: accuracy after the last task (%)")
    axes.grid()
    line = "dots: network alone" if len(plain) == 1 else ""
    hollow = "hollow: reference points" if any(each.is_reference for each in kept) else ""
    axes.set_title(headline([stream, common, "thin line: from task 1 on", line, hollow], 6.4), loc="left")
    words = "; ".join(each.in_words(label) for each, label in zip(kept, labels, strict=True))
    return Drawing(figure, f"ACC against memory in the end, network included. {words}.")
