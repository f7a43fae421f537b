"""How the room for learning fills up, layer by layer."""

from ..stored import StoredRun
from .axes import round_ticks, show_ticks
from .registry import Drawing, register_figure
from .style import INK, headline, legend_below, line_style


@register_figure(
    "capacity",
    "share of frozen bits after each task, per layer",
    "The higher a line, the less room the layer has left to learn.",
    of_one_run=True,
)
def capacity(run: StoredRun) -> Drawing:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.0))
    axes = figure.subplots()
    total = [100 * share for event in run.learned if (share := event.report.get("capacity")) is not None]
    if not total:
        raise ValueError(f"{run.title} froze no bits: capacity is of runs of blip")
    bits = run.bits
    layers = list(bits.layers.items()) if bits else []
    highest = max(total)
    for k, (layer, names) in enumerate(layers):
        shares = [100 * bits.capacity(names, t) for t in range(bits.tasks)] if bits else []
        highest = max(highest, *shares)
        axes.plot(range(1, len(shares) + 1), shares, **line_style(k), label=layer or "network")
    if len(layers) != 1:
        axes.plot(range(1, len(total) + 1), total, color=INK, linewidth=2.4, label="all together")
    axes.set_xticks(range(1, len(total) + 1))
    axes.set_xlabel("tasks learned")
    axes.set_ylabel("bits frozen (%)")
    show_ticks(axes, "y", round_ticks(0, highest, 6, 100.0))
    axes.grid(axis="y")
    note = "" if bits else "layers unknown: its bits were not kept"
    figure.suptitle(headline([run.title, note], figure.get_figwidth()), fontsize=9)
    legend_below(figure)
    return Drawing(figure, f"Capacity used after each task: {', '.join(f'{value:.0f} %' for value in total)}.")
