"""The effect of the prior F0, or of the budget that it is found from, where everything else is the same."""

from collections.abc import Callable
from typing import Any

from ...metrics import spread
from ...runs.events import AccuracyResult
from ..stored import StoredRun
from .registry import Drawing, register_figure
from .style import BLUE, GREEN, INK, ORANGE, headline
from .with_accuracies import Ended, require_accuracies, seeds_in_words

Family = dict[float, list[Ended]]  # finished runs by the option's value


@register_figure(
    "budget",
    "runs that differ in method.budget: accuracy, forgetting, capacity used",
    "A larger budget freezes more: it keeps more and learns less.",
)
def budget(runs: list[StoredRun]) -> Drawing:
    return _ablation(runs, "budget", "budget: share of the bits in use that the first task freezes")


@register_figure(
    "prior",
    "runs that differ in method.prior (F0): accuracy, forgetting, capacity used",
    "A larger prior freezes fewer bits: it learns more and keeps less.",
)
def prior(runs: list[StoredRun]) -> Drawing:
    return _ablation(runs, "prior", "prior F0 (on the scale of the Fisher per sample)")


def _ablation(runs: list[StoredRun], option: str, title: str) -> Drawing:
    from matplotlib.figure import Figure

    family, common = _largest_family(runs, option)
    values = sorted(family)
    figure = Figure(figsize=(7.2, 2.7))
    panels = figure.subplots(1, 3)
    _line(panels[0], family, lambda run: run.result.acc, "at the end", BLUE, "o", "-")
    _line(panels[0], family, lambda run: run.result.learning_acc, "when learned", ORANGE, "s", "--")
    panels[0].set_ylabel("accuracy (%)")
    panels[0].margins(y=0.3)
    panels[0].legend(loc="best")
    _line(panels[1], family, lambda run: run.result.bwt, "", GREEN, "^", "-")
    panels[1].set_ylabel("BWT (points)")
    _line(panels[2], family, _capacity, "", INK, "D", "-")
    panels[2].set_ylabel("capacity used (%)")
    panels[2].set_ylim(0, 1.1 * panels[2].get_ylim()[1])
    for axes in panels:
        axes.set_xscale("log")
        axes.grid()
        axes.set_xticks(values, [f"{value:g}" for value in values], rotation=0 if len(values) < 6 else 45)
        axes.minorticks_off()
        axes.margins(x=0.1)
    figure.supxlabel(title, fontsize=9)
    count = seeds_in_words(family.values(), "bars")
    figure.suptitle(headline([runs[0].stream, common, count], figure.get_figwidth()), fontsize=9)
    words = "; ".join(f"{v:g}: ACC {spread([each.result.acc for each in family[v]])[0]:.2f}" for v in values)
    return Drawing(figure, f"Ablation of {option}. {words}.")


def _capacity(run: Ended) -> float | None:
    """The percentage of bits that are frozen in the end."""
    last = run.run.last_task
    share = last.report.get("capacity") if last else None
    return None if share is None else 100 * share


def _line(
    axes: Any, family: Family, figure: Callable[[Ended], float | None], label: str, color: str, marker: str, line: str
) -> None:
    """Mean and deviation of a figure at each value for which all runs have it."""
    points = []
    for value, runs in sorted(family.items()):
        known = [found for run in runs if (found := figure(run)) is not None]
        if len(known) == len(runs):
            points.append((value, *spread(known)))
    if points:
        x, y, off = zip(*points, strict=True)
        axes.errorbar(
            x, y, off if any(off) else None, label=label, color=color, marker=marker, linestyle=line, markersize=4.5,
            linewidth=1.4, capsize=2,
        )  # fmt: skip


def _largest_family(runs: list[StoredRun], option: str) -> tuple[Family, str]:
    """The runs with the most values of the option and all else the same, and what that is in words."""
    families: dict[str, Family] = {}
    for run in runs:
        value = run.config["method_options"].get(option)
        if not isinstance(run.result, AccuracyResult) or not value:
            continue
        others = [change for change in run.config["changes"] if not change.startswith(f"method.{option}=")]
        key = " ".join(word for word in (run.method, run.config["variant"], *others) if word)
        same = families.setdefault(key, {}).setdefault(float(value), [])
        seeds = [other.run.config["seed"] for other in same]
        if run.config["seed"] not in seeds:  # a change may name the preset's value
            same.append(Ended(run, run.result))
    best = max(families, key=lambda key: len(families[key]), default="")
    if not best or len(families[best]) < 2:
        require_accuracies(runs, option)
        how = f"bitfreeze sweep {runs[0].stream} --methods blip --grid method.{option}=...,..."
        raise ValueError(f"{option} needs finished runs that differ in method.{option} and nothing else: {how}")
    return families[best], best
