"""The registry of attacks, and how their outcomes are counted.

An attack does something bad many times, and says each time what came of it. An outcome that begins with WRONG is one
that must not be: damage that was believed, bytes that differ, a traceback. Everything else is as it should be.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from pathlib import Path

import torch

WRONG = "WRONG"
TELL_EVERY = 300  # seconds, in attacks that take hours


@dataclass
class Outcomes:
    """Counts of outcomes, and what led to the wrong ones."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    most: int | None = None  # rounds that make sense, where an attack cannot go on for ever
    told: float = field(default_factory=time.monotonic)  # when counts were last told

    def note(self, outcome: str, cause: object = "") -> None:
        self.counts[outcome] += 1
        if outcome.startswith(WRONG):
            self.wrong.append(f"{outcome}: {cause}")
        if time.monotonic() - self.told > TELL_EVERY:
            self.told = time.monotonic()
            print(f"  so far: {self}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {outcome}" for outcome, count in self.counts.most_common())


@dataclass(frozen=True)
class Setting:
    """What an attack is given: how often, where it may write, and its source of random numbers."""

    rounds: int
    folder: Path
    rng: random.Random
    deadline: float = inf  # of time.monotonic(), at which the attack ends early

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def turns(self) -> Iterator[int]:
        return takewhile(lambda _: not self.is_over, range(self.rounds))


Act = Callable[[Setting, Outcomes], None]


@dataclass(frozen=True)
class Attack:
    name: str
    what: str
    short: int  # rounds in make test
    long: int  # rounds in make torture
    act: Act

    def run(self, rounds: int, folder: Path, seed: int, seconds: float = inf) -> Outcomes:
        found = Outcomes()
        folder.mkdir(parents=True)
        torch.set_num_threads(1)  # forked processes have no other threads
        self.act(Setting(rounds, folder, random.Random(f"{self.name} {seed}"), time.monotonic() + seconds), found)
        return found


ATTACKS: dict[str, Attack] = {}


def attack(name: str, *, short: int, long: int) -> Callable[[Act], Act]:
    """Register a function as an attack. The first line of its docstring says what it does."""

    def register(act: Act) -> Act:
        ATTACKS[name] = Attack(name, (act.__doc__ or "").splitlines()[0], short, long, act)
        return act

    return register
