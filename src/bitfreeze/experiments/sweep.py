"""Many runs on this machine: a worker for each core, threads pinned, going on past a run that fails."""

import os
import shlex
import subprocess
import sys
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from .config import Config


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


def sweep(configs: list[Config], workers: int, display: Display) -> list[Outcome]:
    """Carry out all of these runs, each in a process of its own with one thread."""
    outcomes = []
    with ThreadPoolExecutor(workers) as pool:
        going = {pool.submit(_run_in_process, config): config for config in configs}
        try:
            while going:
                for future in wait(going, timeout=1, return_when=FIRST_COMPLETED).done:
                    del going[future]
                    outcomes.append(future.result())
                    display.done(outcomes[-1])
                for config in going.values():
                    display.look(config)
        except KeyboardInterrupt:  # the runs get it too, and save; those that wait are not begun
            pool.shutdown(cancel_futures=True)
            raise
    return outcomes


def _run_in_process(config: Config) -> Outcome:
    command = [sys.executable, "-m", "bitfreeze", *shlex.split(config.command)[1:], "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return Outcome(config, "" if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}"))
