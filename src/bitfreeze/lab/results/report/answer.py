"""What a table says in a few words: which method knows most in the end, and at what cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ...metrics import is_above
from ...runs.columns import common_changes, three_digits, values_of
from ...runs.kinds import kind_of
from ..grouping import grouped
from ..table import Line

PLAIN = "ft"  # what costs are compared with: training without any method


@dataclass(frozen=True)
class Fact:
    """A figure of the best method, such as ACC, 99.78 ± 0.31, and what it is compared with."""

    title: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """The best method of a stream in a sentence, its figures, and what the reference points reach."""

    lead: str
    facts: list[Fact]
    more: str = ""


def answer(stream: str, lines: Sequence[Line]) -> Answer | None:
    """The answer of those lines that have most in common, so that they can be compared; None where there is none."""
    kind = kind_of(stream)
    groups = grouped(lines, _setting)
    setting = max(groups, key=lambda key: (len(groups[key]), -len(key)), default="")
    name = kind.compared_by
    known = [line for line in groups.get(setting, []) if values_of(line.rows, name)]
    ranked = sorted((line for line in known if line.competes), key=lambda line: -_mean(line, name))
    if not ranked:
        return None
    best, title = ranked[0], _title(ranked[0], name)
    plain = next((line for line in ranked if line.method == PLAIN and line is not best), None)
    unit = " %" if kind.unit == "percent" else ""
    facts = [Fact(title, best.cells()[title] + unit, _runner_up(ranked, title, name)), *_cost(best, plain)]
    changed = _change(best, plain)
    bounds = [f"{_label(line)} reaches {line.cells()[title]}" for line in known if not line.competes]
    return Answer(_lead(ranked, title, name, setting), [facts[0], *changed, *facts[1:]], _sentence(bounds))


def _lead(ranked: Sequence[Line], title: str, name: str, setting: str) -> str:
    best, rivals = ranked[0], ranked[1:]
    seeds = f"{len(best.rows)} seeds" if len(best.rows) > 1 else "one seed"
    where = f" ({setting})" if setting else ""
    if not rivals:
        return f"{_label(best)} ends with {title} {best.cells()[title]}, over {seeds}{where}."
    level = [line for line in rivals if not is_above(values_of(best.rows, name), values_of(line.rows, name))]
    if level and len(best.rows) > 1:
        others = ", ".join(_label(line) for line in level)
        near = f"level with {others} within the spread of {seeds}"
        return f"Of {len(ranked)} methods {_label(best)} knows most after the last task, {near}{where}."
    return f"Of {len(ranked)} methods {_label(best)} knows most after the last task, over {seeds}{where}."


def _runner_up(ranked: Sequence[Line], title: str, name: str) -> str:
    return f"next: {_label(ranked[1])} {ranked[1].cells()[title]}" if len(ranked) > 1 else ""


def _change(best: Line, plain: Line | None) -> list[Fact]:
    """What was forgotten, where the lines tell."""
    if not values_of(best.rows, "bwt"):
        return []
    note = f"fine-tuning: {_mean(plain, 'bwt'):+.2f}" if plain else ""
    return [Fact("change since learned", f"{_mean(best, 'bwt'):+z.2f} points", note)]


def _cost(best: Line, plain: Line | None) -> list[Fact]:
    memory, network = _mean(best, "memory_mb"), _mean(best, "model_bytes") / 1e6
    facts = [Fact("memory", f"{three_digits(memory)} MB", f"{memory / network:.2g} times the network alone")]
    seconds = _mean(best, "seconds")
    note = f"{seconds / _mean(plain, 'seconds'):.2g} times fine-tuning's" if plain and _mean(plain, "seconds") else ""
    return [*facts, Fact("time", _duration(seconds), note)]


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _sentence(parts: Sequence[str]) -> str:
    return f"For comparison, {' and '.join(parts)}." if parts else ""


def _setting(line: Line) -> str:
    return " ".join(common_changes(line.variant.split()))


def _label(line: Line) -> str:
    """The method with what is its own of the variant."""
    common = common_changes(line.variant.split())
    return " ".join([line.method, *(word for word in line.variant.split() if word not in common)])


def _title(line: Line, name: str) -> str:
    return next(title for title, shown in line.columns.items() if shown.name == name)


def _mean(line: Line, name: str) -> float:
    return mean(values_of(line.rows, name))
