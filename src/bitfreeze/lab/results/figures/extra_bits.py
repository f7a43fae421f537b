"""How many more bits each task froze, and how many parameters never had any frozen."""

import numpy as np

from ..bit_history import Array, BitHistory
from ..stored import StoredRun
from .bits_needed import bits_of
from .registry import Drawing, register_figure
from .style import BLUE, GREY, INK, ORANGE, SKY, grid_shape, headline, legend_below, wrapped


@register_figure(
    "extra_bits",
    "histogram of the bits that each task froze, never-frozen ones marked",
    "A bar is the share of weights for which the task froze so many more bits. Weights at 0 stayed as free as before.",
    of_one_run=True,
    needs_bits=True,
)
def extra_bits(run: StoredRun) -> Drawing:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    bits = bits_of(run, "extra_bits")
    counts = counted(bits)
    rows, columns = grid_shape(bits.tasks, 5)
    figure = Figure(figsize=(max(4.2, 1.75 * columns + 0.5), 2.1 * rows + 0.5))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    widest = max(int(np.flatnonzero(c.more).max(initial=0)) for c in counts)
    for task, (axes, c) in enumerate(zip(panels.flat, counts, strict=False)):
        axes.bar(range(1, len(c.more)), c.more[1:], color=BLUE, width=0.8)
        axes.bar(0, c.again, color=SKY, width=0.8)
        if c.never:
            axes.bar(0, c.never, bottom=c.again, color="white", edgecolor=GREY, hatch="////", width=0.8, linewidth=0.5)
        if c.silent:
            axes.bar(0, c.silent, bottom=c.again + c.never, color=ORANGE, edgecolor=INK, hatch="xxxx", width=0.8)
        name = run.tasks[task] if task < len(run.tasks) else ""
        axes.set_title("\n".join(wrapped(f"task {task + 1}: {name}" if name else f"task {task + 1}", 1.6)))
        mean = float((np.arange(len(c.more)) * c.more).sum()) / 100
        note = f"mean {mean:.2f} bits\nnever frozen {c.never + c.silent:.1f} %\ndead units {c.dead} of {c.units}"
        axes.text(0.97, 0.97, note, transform=axes.transAxes, ha="right", va="top", fontsize=7, linespacing=1.4)
        axes.set_xlim(-0.7, widest + 0.7)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
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
    legend_below(figure, keys, most=2)
    entries = sum(int(np.prod(bits.shape(name))) for name in bits.names)
    figure.suptitle(headline([run.title, f"{entries:,} parameters"], figure.get_figwidth()), fontsize=9)
    never_at_all = counts[-1].never + counts[-1].silent
    return Drawing(figure, f"Extra bits of each task. In the end {never_at_all:.1f} % of parameters have none frozen.")


class Counts:
    """What a task did, in shares of all parameters in percent, and the units that are dead after it."""

    def __init__(self, depth: int) -> None:
        self.more = np.zeros(depth + 1)  # more[k]: k bits more than before
        self.again = self.never = self.silent = 0.0  # no more now: some before, never any, never any in a dead unit
        self.dead = self.units = 0

    def add(self, frozen: Array, extra: Array, dead: Array | None, share: float) -> None:
        """One tensor; ``share`` is that of a parameter."""
        self.more += share * np.bincount(extra.ravel(), minlength=len(self.more))
        untouched = frozen == 0
        none_at_all = int(untouched.sum())
        in_dead = int(untouched[dead].sum()) if dead is not None else 0
        self.again += share * (int((extra == 0).sum()) - none_at_all)
        self.never += share * (none_at_all - in_dead)
        self.silent += share * in_dead
        if dead is not None:
            self.dead, self.units = self.dead + int(dead.sum()), self.units + len(dead)


def counted(bits: BitHistory) -> list[Counts]:
    """The counts of each task."""
    found = [Counts(bits.depth) for _ in range(bits.tasks)]
    share = 100 / sum(int(np.prod(bits.shape(name))) for name in bits.names)
    for name in bits.names:
        before: Array = np.zeros(bits.shape(name), np.uint8)
        dead = bits.dead_units(name) if name in bits.weights else iter([None] * bits.tasks)
        for task, (counts, units) in enumerate(zip(found, dead, strict=True)):
            frozen = bits.bits(name, task)
            counts.add(frozen, frozen - before, units, share)
            before = frozen
    return found
