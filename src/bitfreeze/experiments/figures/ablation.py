"""What the prior F0, or the budget that it is found from, does: everything else is the same."""

from typing import Any

from ..stored import StoredRun
from .grouping import require_accuracies, spread
from .registry import Drawing, register_figure
from .style import BLUE, GREEN, INK, ORANGE, headline

Family = dict[float, list[StoredRun]]  # finished runs by the option's value


@register_figure("budget", "runs that differ in method.budget: accuracy, forgetting, capacity used")
def budget(runs: list[StoredRun]) -> Drawing:
    return _ablation(runs, "budget", "budget: share of the bits in use that the first task freezes")


@register_figure("prior", "runs that differ in method.prior (F0): accuracy, forgetting, capacity used")
def prior(runs: list[StoredRun]) -> Drawing:
    return _ablation(runs, "prior", "prior F0 (on the scale of the Fisher per sample)")


def _ablation(runs: list[StoredRun], option: str, title: str) -> Drawing:
    from matplotlib.figure import Figure

    family, common = _largest_family(runs, option)
    values = sorted(family)
    figure = Figure(figsize=(7.2, 2.7))
    panels = figure.subplots(1, 3)
    after_last = {value: [run.result or {} for run in family[value]] for value in values}
    capacity = {value: [run.last_task for run in family[value]] for value in values}
    _line(panels[0], values, after_last, "acc", "at the end", BLUE, "o", "-")
    _line(panels[0], values, after_last, "learning_acc", "when learned", ORANGE, "s", "--")
    panels[0].set_ylabel("accuracy (%)")
    panels[0].margins(y=0.3)
    panels[0].legend(loc="best")
    _line(panels[1], values, after_last, "bwt", "", GREEN, "^", "-")
    panels[1].set_ylabel("BWT (points)")
    _line(panels[2], values, capacity, "capacity", "", INK, "D", "-", 100.0)
    panels[2].set_ylabel("capacity used (%)")
    panels[2].set_ylim(0, 1.1 * panels[2].get_ylim()[1])
    for axes in panels:
        axes.set_xscale("log")
        axes.grid()
        axes.set_xticks(values, [f"{value:g}" for value in values], rotation=0 if len(values) < 6 else 45)
        axes.minorticks_off()
        axes.margins(x=0.1)
    figure.supxlabel(title, fontsize=9)
    seeds = sorted({len(found) for found in family.values()})
    number = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    count = f"mean over {number} seeds, bars: standard deviation" if seeds[-1] > 1 else "one seed"
    figure.suptitle(headline([runs[0].stream, common, count], figure.get_figwidth()), fontsize=9)
    words = "; ".join(f"{v:g}: ACC {spread([r['acc'] for r in after_last[v]])[0]:.2f}" for v in values)
    return Drawing(figure, f"Ablation of {option}. {words}.")


def _line(
    axes: Any, values: list[float], found: dict[float, list[Any]], name: str, label: str, color: str, marker: str,
    line: str, scale: float = 1.0,
) -> None:  # fmt: skip
    points = [(v, *spread([scale * r[name] for r in found[v]])) for v in values if all(name in r for r in found[v])]
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
        if run.result is None or "acc" not in run.result or not value:
            continue
        others = [change for change in run.config["changes"] if not change.startswith(f"method.{option}=")]
        key = " ".join(word for word in (run.method, run.config["variant"], *others) if word)
        same = families.setdefault(key, {}).setdefault(float(value), [])
        if all(other.config["seed"] != run.config["seed"] for other in same):  # the preset's value may be spelled out
            same.append(run)
    best = max(families, key=lambda key: len(families[key]), default="")
    if not best or len(families[best]) < 2:
        require_accuracies(runs, option)
        how = f"bitfreeze sweep {runs[0].stream} --methods blip --grid method.{option}=...,..."
        raise ValueError(f"{option} needs finished runs that differ in method.{option} and nothing else: {how}")
    return families[best], best
