"""The paper's first figure, of a real parameter: what each task told about it, and where it may still move."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bit_history import BitHistory
from ..stored import StoredRun
from .bits_needed import bits_of
from .registry import Drawing, register_figure
from .style import BLUE, GREY, INK, ORANGE, PALE, SKY, headline


@dataclass(frozen=True)
class Step:
    """A parameter after a task; task 0 is before the first."""

    bits: int
    units: int  # centre, in units of bound * 2^-depth
    centre: float
    radius: float
    gain: float
    value: float | None  # None where only centres were kept


@register_figure(
    "workflow",
    "one parameter: interval, information gain and bits after each task",
    "Each task leaves the weight a narrower interval, blue, inside the one before it, grey.",
    of_one_run=True,
    needs_bits=True,
)
def workflow(run: StoredRun, parameter: str = "") -> Drawing:
    from matplotlib.figure import Figure

    bits = bits_of(run, "workflow")
    name, index = _named(bits, parameter) if parameter else _telling(bits)
    steps = history(bits, name, index)
    figure = Figure(figsize=(9.2, 0.68 * (len(steps) - 1) + 0.95))
    widths = [3.6, 1.5, 0.24 * (bits.depth + bits.has_digits) + 0.4]
    panels = figure.subplots(len(steps) - 1, 3, squeeze=False, gridspec_kw={"width_ratios": widths})
    largest = max(1.0, *(step.gain for step in steps[1:]))
    for t, (row, before, after) in enumerate(zip(panels, steps[:-1], steps[1:], strict=True)):
        _interval(row[0], before, after)
        learned = run.tasks[t].replace("?", "?\n") if t < len(run.tasks) else ""
        row[0].set_ylabel(f"after task {t + 1}\n{learned}".rstrip(), rotation=0, ha="right", va="center")
        _gain(row[1], before, after, largest, bits.depth)
        _cells(row[2], before, after, bits)
    marks = "line: centre, dot: value" if bits.has_values else "line: centre"
    panels[0, 0].set_title(f"interval: grey before, blue after\n{marks}; zoomed", loc="left")
    panels[0, 1].set_title("information gain,\nrounded up", loc="left")
    kind = "binary digits of the centre" if bits.has_digits else "bits of precision"
    panels[0, 2].set_title(f"{kind}\nfilled: frozen, orange: by this task", loc="left")
    place = ", ".join(map(str, index))
    known = "" if bits.has_values else "only centres were kept of this run"
    figure.suptitle(headline([run.title, f"{name}[{place}]", known], figure.get_figwidth()), fontsize=9)
    return Drawing(figure, f"One parameter, {name}[{place}]: frozen bits {' '.join(str(s.bits) for s in steps[1:])}.")


def history(bits: BitHistory, name: str, index: tuple[int, ...]) -> list[Step]:
    """A parameter before the first task and after each."""
    bound = bits.bound(name)
    steps = [Step(0, 0, 0.0, bound, 0.0, None)]
    for t in range(bits.tasks):
        frozen, units = int(bits.bits(name, t)[index]), int(bits.units(name, t)[index])
        centre, radius = units * bound * 2.0**-bits.depth, bound * 2.0**-frozen
        value = centre + radius * float(bits.offset(name, t)[index]) / 127 if bits.has_values else None
        steps.append(Step(frozen, units, centre, radius, float(bits.gain(name, t)[index]), value))
    return steps


def _interval(axes: Any, before: Step, after: Step) -> None:
    low, high = before.centre - before.radius, before.centre + before.radius
    low, high = min(low, after.centre - after.radius), max(high, after.centre + after.radius)  # rounded centres drift
    axes.barh(0, 2 * before.radius, 0.5, before.centre - before.radius, color=PALE)
    axes.barh(0, 2 * after.radius, 0.5, after.centre - after.radius, color=SKY, edgecolor=BLUE, linewidth=0.8)
    axes.plot([after.centre] * 2, [-0.25, 0.25], color=BLUE, linewidth=1.6)
    if after.value is not None:
        axes.plot(after.value, 0, "o", color=ORANGE, markersize=5, markeredgecolor="white", markeredgewidth=0.7)
    margin = 0.02 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(-0.45, 0.45)
    axes.set_yticks([])
    axes.spines[["left"]].set_visible(False)
    ends = (before.centre - before.radius, before.centre + before.radius)
    clear = all(abs(after.centre - end) > 0.2 * (high - low) for end in ends)  # of the other labels
    ticks = [*ends, after.centre] if clear else ends
    digits = max(2, int(np.ceil(-np.log10(high - low))) + 2)
    axes.set_xticks(ticks, [f"{tick:.{digits}f}" for tick in ticks])


def _gain(axes: Any, before: Step, after: Step, largest: float, depth: int) -> None:
    extra = after.bits - before.bits
    axes.barh(0, max(0.0, after.gain), 0.5, color=ORANGE)
    axes.set_xlim(0, 1.9 * largest)
    axes.set_ylim(-0.45, 0.45)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.spines[["bottom"]].set_visible(False)
    full = ", none left" if after.bits == depth else ""
    text = f"{after.gain:.2f}: {extra} more{full}"
    axes.text(max(0.0, after.gain) + 0.05 * largest, 0, text, va="center", fontsize=8)


def _cells(axes: Any, before: Step, after: Step, bits: BitHistory) -> None:
    """A cell a bit; those of this task stand out, the free ones are open."""
    from matplotlib.patches import Rectangle

    digits = f"{abs(after.units):0{bits.depth}b}"[-bits.depth :]
    for k in range(bits.depth):
        frozen, new = k < after.bits, before.bits <= k < after.bits
        face = ORANGE if new else BLUE if frozen else "white"
        axes.add_patch(Rectangle((k, -0.5), 0.88, 1, facecolor=face, edgecolor=INK if frozen else GREY, linewidth=0.6))
        if bits.has_digits and frozen:
            axes.text(k + 0.44, -0.04, digits[k], ha="center", va="center", fontsize=7.5, color="white")
    if bits.has_digits:
        sign = "-" if after.units < 0 else "+"
        axes.text(-0.25, -0.04, f"{sign}0.", ha="right", va="center", fontsize=8)
    axes.text(bits.depth + 0.2, -0.04, f"{after.bits} of {bits.depth}", va="center", fontsize=8)
    axes.set_xlim(-1.6 if bits.has_digits else -0.2, bits.depth + 3.6)
    axes.set_ylim(-1.6, 1.6)
    axes.axis("off")


def _telling(bits: BitHistory) -> tuple[str, tuple[int, ...]]:
    """The parameter that the most tasks told something about; of those the one with the most bits."""
    name = max(bits.weights or bits.names, key=lambda name: int(np.prod(bits.shape(name))))
    score = bits.bits(name, bits.tasks - 1).astype(np.float64) / 100
    for t in range(bits.tasks):
        score += bits.extra(name, t) > 0
    return name, tuple(int(k) for k in np.unravel_index(int(score.argmax()), score.shape))


def _named(bits: BitHistory, parameter: str) -> tuple[str, tuple[int, ...]]:
    found = re.fullmatch(r"(.+)\[([\d, ]+)\]", parameter)
    if not found or found[1] not in bits.names:
        raise ValueError(
            f"a parameter is written {bits.names[0]}[{', '.join('0' for _ in bits.shape(bits.names[0]))}], got "
            f"{parameter!r}; tensors are {', '.join(bits.names)}"
        )
    index = tuple(int(k) for k in found[2].split(","))
    shape = bits.shape(found[1])
    if len(index) != len(shape) or any(k >= n for k, n in zip(index, shape, strict=True)):
        raise ValueError(f"{parameter} is not there: {found[1]} is {' x '.join(map(str, shape))}, counted from 0")
    return found[1], index
