"""Many runs: which ones, and how an engine carries them out, going on past a run that fails."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ..runs.config import Config, make_config, setting
from .engine import Engine, Job


@dataclass(frozen=True)
class Outcome:
    """How one run of a sweep has ended."""

    config: Config
    error: str  # "" for a run that finished
    warnings: tuple[str, ...] = ()  # that no run before it has given


class Display:
    """Shows how a sweep goes. This one shows nothing."""

    def begin(self, configs: Sequence[Config]) -> None:
        """Called once, before the first run starts."""

    def look(self, config: Config) -> None:
        """Called every second for each run that is not done."""

    def done(self, outcome: Outcome) -> None:
        """Called when a run has ended."""


def plan(
    stream: str, methods: Iterable[str], seeds: Iterable[int], changes: Iterable[str], grid: Iterable[str]
) -> list[Config]:
    """The settings of each run of a sweep, each run once. A method is written ``method`` or ``method:variant``."""
    pairs, changes, grid = [name.partition(":") for name in methods], list(changes), list(grid)
    return _distinct(
        make_config(stream, method, variant, seed, _with_point(changes, point))
        for seed in seeds
        for method, _, variant in pairs
        for point in grid_changes(grid, make_config(stream, method, variant, changes=changes))
    )


def grid_changes(grid: Iterable[str], base: Config) -> list[tuple[str, ...]]:
    """All combinations of ``part.name=value,value``; ``20x`` is 20 times what ``base`` has, and ``1x`` no change."""
    axes = []
    for axis in grid:
        name, equals, values = axis.partition("=")
        if not (equals and values):
            raise ValueError(f"a grid is written part.name=value,value, such as method.budget=0.03,0.1; got {axis!r}")
        axes.append([_change(name, value, base) for value in re.split(r",(?![^\[]*\])", values)])  # not within a list
    return [tuple(change for change in point if change) for point in product(*axes)]


def _with_point(changes: Iterable[str], point: tuple[str, ...]) -> list[str]:
    """The changes of a sweep and of one point of its grid, which has the last word on what it sets."""
    replaced = {change.partition("=")[0] for change in point}
    return [*(change for change in changes if change.partition("=")[0] not in replaced), *point]


def _change(name: str, value: str, base: Config) -> str:
    """The change that a value of a grid stands for; empty where nothing changes."""
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


def _distinct(configs: Iterable[Config]) -> list[Config]:
    """Each run once, named by the first of its spellings: 1x and the preset's own value are the same run."""
    found: list[tuple[Config, Config]] = []  # with its settings alone
    for config in configs:
        alone = replace(config, changes=())
        if all(alone != other for other, _ in found):
            found.append((alone, config))
    return [config for _, config in found]


def sweep(configs: Sequence[Config], engine: Engine[Job], display: Display) -> list[Outcome]:
    """Carry out all of these runs, each in a process of its own with one thread, and close the engine."""
    outcomes: list[Outcome] = []
    going: dict[Job, Config] = {}
    told: set[str] = set()
    try:
        display.begin(configs)
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
