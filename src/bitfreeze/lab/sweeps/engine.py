"""Engines: an engine starts runs somewhere, waits for them and stops them."""

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..runs.config import Config

Job = TypeVar("Job")
Options = Mapping[str, Any] | None  # of each Ray task or SLURM job
WARNING = re.compile(r"^(warning: .+)$", re.MULTILINE)  # as the command line prints them


@dataclass(frozen=True)
class Ending:
    """How a run has ended."""

    error: str = ""  # what went wrong, in a sentence; empty if nothing did
    warnings: tuple[str, ...] = ()  # of a run that finished, each once


class Engine(Protocol[Job]):
    """Carries out runs. Each is a process of its own, `bitfreeze run ...`, with one thread."""

    def submit(self, config: Config) -> Job:
        """Queue a run."""

    def wait(self, jobs: Iterable[Job], seconds: float) -> list[Job]:
        """Wait until a job has ended, for at most so many seconds; returns the jobs that have."""

    def ending(self, job: Job) -> Ending:
        """How the run of a job has ended. The job must have ended."""

    def stop(self, jobs: Iterable[Job]) -> None:
        """Begin no more of these jobs and end those that go on. What their runs have saved is kept."""

    def close(self) -> None:
        """Release the engine. No job is under way any more."""


def carry_out(command: str, runs: str, device: str) -> Ending:
    """Carry out a run in a process of its own, which ends with this one."""
    process = start(command, runs, device)
    return ending_of(process, *process.communicate())


def ending_of(process: "subprocess.Popen[str]", out: str, err: str) -> Ending:
    """How a process has ended, from its output: the last line if it failed, else its warnings."""
    if process.returncode == 0:
        return Ending(warnings=tuple(dict.fromkeys(WARNING.findall(err))))
    lines = (err or out).strip().splitlines()
    return Ending(lines[-1] if lines else f"exit code {process.returncode}")


def start(command: str, runs: str, device: str) -> "subprocess.Popen[str]":
    """Start a process that carries out a run on a device, below the folder ``runs``."""
    words = [sys.executable, "-m", "bitfreeze", *shlex.split(command)[1:], "--threads", "1", "--device", device]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "BITFREEZE_RUNS": runs}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_end_with_parent
    )


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded before any fork


def _end_with_parent() -> None:
    """End this process with its parent: a killed worker must not leave a run that goes on writing, because another
    worker takes the run up. Ctrl-C ends it too, also where this process was started to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
