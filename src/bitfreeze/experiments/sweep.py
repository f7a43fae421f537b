"""Many runs on some engine, going on past a run that fails."""

from dataclasses import dataclass
from typing import Protocol

from .config import Config
from .engines.engine import Engine, Job


@dataclass(frozen=True)
class Outcome:
    config: Config
    error: str  # "" for a run that finished


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


def sweep(configs: list[Config], engine: Engine[Job], display: Display) -> list[Outcome]:
    """Carry out all of these runs, each in a process of its own with one thread."""
    outcomes: list[Outcome] = []
    going: dict[Job, Config] = {}
    try:
        going |= {engine.submit(config): config for config in configs}
        while going:
            for job in engine.wait(going, 1.0):
                outcomes.append(Outcome(going.pop(job), engine.error(job)))
                display.done(outcomes[-1])
            for config in going.values():
                display.look(config)
    except KeyboardInterrupt:
        engine.stop(going)
        raise
    finally:
        engine.close()
    return outcomes
