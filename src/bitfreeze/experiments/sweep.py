"""Many runs on some engine, going on past a run that fails."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from .config import Config, setting
from .engines.engine import Engine, Job


@dataclass(frozen=True)
class Outcome:
    config: Config
    error: str  # "" for a run that finished
    warnings: tuple[str, ...] = ()  # that no run before it has given


class Display(Protocol):
    """Where a sweep shows how it goes."""

    def look(self, config: Config) -> None:
        """Every second, for each run that is not done."""

    def done(self, outcome: Outcome) -> None: ...


def parse_seeds(text: str) -> list[int]:
    """``0-4``, ``0,2,5`` or both."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"seeds are written 0-4 or 0,2,5; got {text!r}")
        if int(last or first) < int(first):
            raise ValueError(f"seeds are written 0-4, the smaller first; got {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(seeds))


def grid_changes(grid: Iterable[str], base: Config) -> list[tuple[str, ...]]:
    """All combinations of ``part.name=value,value``; ``20x`` is 20 times what ``base`` has, and ``1x`` no change."""
    axes = []
    for axis in grid:
        name, equals, values = axis.partition("=")
        if not (equals and values):
            raise ValueError(f"a grid is written part.name=value,value, such as method.budget=0.03,0.1; got {axis!r}")
        axes.append([_change(name, value, base) for value in re.split(r",(?![^\[]*\])", values)])  # not within a list
    return [tuple(change for change in point if change) for point in product(*axes)]


def with_point(changes: Iterable[str], point: tuple[str, ...]) -> list[str]:
    """A point of a grid has the last word on what it sets."""
    replaced = {change.partition("=")[0] for change in point}
    return [*(change for change in changes if change.partition("=")[0] not in replaced), *point]


def _change(name: str, value: str, base: Config) -> str:
    """Empty where nothing changes."""
    times = value.removesuffix("x")
    if times == value or not times.replace(".", "", 1).isdigit():
        return f"{name}={value}"
    given = setting(base, name)
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise ValueError(
            f"{name} is {'none' if given is None else given} in the preset of {base.method}, which {value} cannot "
            f"multiply: give values, or set it for all (--set {name}=...)"
        )
    product = float(times) * given
    whole = isinstance(given, int) and product.is_integer()
    return "" if float(times) == 1 else f"{name}={int(product) if whole else f'{product:.6g}'}"


def distinct(configs: Iterable[Config]) -> list[Config]:
    """Each run once, named by the first of its spellings: 1x and the preset's own value are the same run."""
    found: list[tuple[Config, Config]] = []  # with its settings alone
    for config in configs:
        alone = replace(config, changes=())
        if all(alone != other for other, _ in found):
            found.append((alone, config))
    return [config for _, config in found]


def sweep(configs: list[Config], engine: Engine[Job], display: Display) -> list[Outcome]:
    """Carry out all of these runs, each in a process of its own with one thread, and close the engine."""
    outcomes: list[Outcome] = []
    going: dict[Job, Config] = {}
    told: set[str] = set()
    try:
        going |= {engine.submit(config): config for config in configs}
        while going:
            for job in engine.wait(going, 1.0):
                ending = engine.ending(job)
                new = tuple(warning for warning in ending.warnings if warning not in told)
                told.update(new)
                outcomes.append(Outcome(going.pop(job), ending.error, new))
                display.done(outcomes[-1])
            for config in going.values():
                display.look(config)
    except KeyboardInterrupt:
        engine.stop(going)
        raise
    finally:
        engine.close()
    return outcomes
