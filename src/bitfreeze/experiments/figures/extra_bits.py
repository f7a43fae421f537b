"""How many more bits each task froze, and where nothing ever was."""

import numpy as np

from ..bit_history import Array, BitHistory
from ..stored import StoredRun
from .bits_needed import bits_of
from .registry import Drawing, register_figure
from .style import BLUE, GREY, INK, ORANGE, SKY, grid_shape, headline


@register_figure("extra_bits", "histogram of the bits that each task froze, never-frozen ones marked", of_one_run=True)
def extra_bits(run: StoredRun) -> Drawing:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    bits = bits_of(run, "extra_bits")
    counts = [_counts(bits, task) for task in range(bits.tasks)]
    rows, columns = grid_shape(bits.tasks, 5)
    figure = Figure(figsize=(max(4.2, 1.75 * columns + 0.5), 2.0 * rows + 0.9))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    widest = max(int(np.flatnonzero(more).max(initial=0)) for more, *_ in counts)
    for task, (axes, (more, again, never, silent, dead, units)) in enumerate(zip(panels.flat, counts, strict=False)):
        axes.bar(range(1, len(more)), more[1:], color=BLUE, width=0.8)
        axes.bar(0, again, color=SKY, width=0.8)
        if never:
            axes.bar(0, never, bottom=again, color="white", edgecolor=GREY, hatch="////", width=0.8, linewidth=0.5)
        if silent:
            axes.bar(
                0, silent, bottom=again + never, color=ORANGE, edgecolor=INK, hatch="xxxx", width=0.8, linewidth=0.5
            )
        name = run.tasks[task] if task < len(run.tasks) else ""
        axes.set_title(f"task {task + 1}: {name}" if name else f"task {task + 1}")
        mean = float((np.arange(len(more)) * more).sum()) / 100
        note = f"mean {mean:.2f} bits\nnever frozen {never + silent:.1f} %\ndead units {dead} of {units}"
        axes.text(0.97, 0.97, note, transform=axes.transAxes, ha="right", va="top", fontsize=7, linespacing=1.4)
        axes.set_xlim(-0.7, widest + 0.7)
        axes.grid(axis="y")
    for axes in list(panels.flat)[bits.tasks :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("parameters (%)")
    for axes in list(panels.flat)[max(0, bits.tasks - columns) : bits.tasks]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("more bits frozen")
    panels[0, 0].set_ylim(0, 1.45 * panels[0, 0].get_ylim()[1])  # room for the words
    panels[0, 0].set_yticks([tick for tick in panels[0, 0].get_yticks() if tick <= 100])
    keys = [
        Patch(color=BLUE, label="bits frozen by this task"),
        Patch(color=SKY, label="none now, some before"),
        Patch(facecolor="white", edgecolor=GREY, hatch="////", label="never frozen so far"),
        Patch(facecolor=ORANGE, edgecolor=INK, hatch="xxxx", label="never frozen, in a dead unit (Fisher 0 so far)"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=2)
    entries = sum(int(np.prod(bits.shape(name))) for name in bits.names)
    figure.suptitle(headline([run.title, f"{entries:,} parameters"], figure.get_figwidth()), fontsize=9)
    never_at_all = counts[-1][2] + counts[-1][3]
    return Drawing(figure, f"Extra bits of each task. In the end {never_at_all:.1f} % of parameters have none frozen.")


def _counts(bits: BitHistory, task: int) -> tuple[Array, float, float, float, int, int]:
    """In percent: each number of extra bits; of those with none now, some before, never, and in dead units."""
    more, total = np.zeros(bits.depth + 1), 0
    again = never = silent = 0
    dead_units = units = 0
    for name in bits.names:
        frozen, extra = bits.bits(name, task), bits.extra(name, task)
        more += np.bincount(extra.ravel(), minlength=bits.depth + 1)
        total += extra.size
        untouched = frozen == 0
        again += int(((extra == 0) & ~untouched).sum())
        in_dead = np.zeros(frozen.shape, bool)
        if name in bits.weights:
            dead = bits.dead_units(name, task)
            in_dead[dead] = True
            dead_units, units = dead_units + int(dead.sum()), units + len(dead)
        silent += int((untouched & in_dead).sum())
        never += int((untouched & ~in_dead).sum())
    share = 100 / total
    return more * share, again * share, never * share, silent * share, dead_units, units
