"""What a method keeps against what it learns, and what it costs in memory."""

from statistics import mean

from ...metrics import spread
from ..stored import StoredRun
from .registry import Drawing, register_figure
from .style import GREY, headline, line_style, shorten
from .with_accuracies import results

SIZES = (40.0, 520.0)  # of the marks, in square points, for nothing kept and for the most that any method keeps


@register_figure("tradeoff", "ACC against BWT, the size of a mark is what the method keeps beyond the network")
def tradeoff(runs: list[StoredRun]) -> Drawing:
    from matplotlib.figure import Figure

    groups = results(runs, "tradeoff")
    labels, common = shorten(list(groups))
    kept = [mean(result.extra_bytes + result.buffer_bytes for result in found) for found in groups.values()]
    most = max(*kept, 1.0)
    beside = len(labels) <= 12 and max(map(len, labels)) < 40
    figure = Figure(figsize=(7.2, 3.9 if beside else 4.1 + 0.17 * len(labels) / 2))
    axes = figure.subplots()
    words = []
    for k, (label, found, size) in enumerate(zip(labels, groups.values(), kept, strict=True)):
        acc, acc_off = spread([result.acc for result in found])
        bwt, bwt_off = spread([result.bwt for result in found])
        style = line_style(k)
        area = SIZES[0] + (SIZES[1] - SIZES[0]) * size / most
        axes.errorbar(bwt, acc, acc_off or None, bwt_off or None, color=style["color"], linewidth=0.8, zorder=1)
        axes.scatter(
            bwt, acc, area, color=style["color"], marker=style["marker"], alpha=0.75, edgecolor="white",
            linewidth=0.8, zorder=2 + (most - size) / most,
        )  # fmt: skip
        axes.plot([], [], linestyle="", marker=style["marker"], color=style["color"], label=f"{label}  ({_size(size)})")
        words.append(f"{label}: ACC {acc:.2f}, BWT {bwt:+.2f}, {_size(size)}")
    axes.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xlabel("BWT: mean change since learned (points)")
    axes.set_ylabel("ACC: accuracy after the last task (%)")
    axes.margins(0.14)
    axes.grid()
    place = {"loc": "outside right upper"} if beside else {"loc": "outside lower left", "ncols": 2, "fontsize": 7}
    figure.legend(**place, title="method (kept beyond the network)", alignment="left")
    axes.set_title(headline([runs[0].stream, common], 4.0 if beside else 6.0))
    return Drawing(figure, "ACC against BWT. " + "; ".join(words) + ".")


def _size(count: float) -> str:
    return "nothing" if not count else f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"
