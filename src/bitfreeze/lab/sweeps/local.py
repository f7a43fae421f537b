"""Runs on this machine, several at a time."""

import signal
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from ..runs.config import Config
from ..runs.folder import runs_root
from .engine import Ending, Options, ending_of, start

PATIENCE = 5.0  # seconds that runs have to end by themselves
STOPPED = Ending("stopped before it began")


class Local:
    """``workers`` runs at a time, below ``root``."""

    def __init__(self, address: str = "", workers: int = 1, options: Options = None, root: Path | None = None) -> None:
        if address or options:
            raise ValueError("the local engine has no address and no options: leave them out, or choose ray or slurm")
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.pool, self.root = ThreadPoolExecutor(workers), runs_root(root)
        self.processes: set[subprocess.Popen[str]] = set()
        self.stopped = False

    def submit(self, config: Config) -> "Future[Ending]":
        return self.pool.submit(self._carry_out, config.command)

    def _carry_out(self, command: str) -> Ending:
        if self.stopped:
            return STOPPED
        process = start(command, str(self.root))
        self.processes.add(process)
        if self.stopped:  # meanwhile
            process.kill()
        try:
            return ending_of(process, *process.communicate())
        finally:
            self.processes.discard(process)

    def wait(self, jobs: "Iterable[Future[Ending]]", seconds: float) -> "list[Future[Ending]]":
        return list(wait(jobs, timeout=seconds, return_when=FIRST_COMPLETED).done)

    def ending(self, job: "Future[Ending]") -> Ending:
        return job.result()

    def stop(self, jobs: "Iterable[Future[Ending]]") -> None:
        """Begin no more runs, and end those that go on. Ctrl-C on a terminal reaches them too, a signal does not."""
        self.stopped = True
        self.pool.shutdown(wait=False, cancel_futures=True)
        going = list(self.processes)
        for process in going:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + PATIENCE
        for process in going:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            process.kill()  # it loses no more than by Ctrl-C: a checkpoint is whole at any moment

    def close(self) -> None:
        self.pool.shutdown()
