"""Many runs on this machine: a worker for each core, threads pinned, going on past a run that fails."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from .config import Config


@dataclass(frozen=True)
class Outcome:
    config: Config
    error: str  # "" for a run that finished


def parse_seeds(text: str) -> list[int]:
    """``0-4``, ``0,2,5`` or both."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"seeds are written 0-4 or 0,2,5; got {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def sweep(configs: list[Config], workers: int, on_done: Callable[[Outcome], None]) -> list[Outcome]:
    """Carry out all of these runs, each in a process of its own with one thread."""
    outcomes = []
    with ThreadPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(_run_in_process, config) for config in configs]):
            outcomes.append(future.result())
            on_done(outcomes[-1])
    return outcomes


def _run_in_process(config: Config) -> Outcome:
    command = [sys.executable, "-m", "bitfreeze", *config.command.split()[1:], "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return Outcome(config, "" if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}"))
