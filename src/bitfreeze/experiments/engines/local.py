"""Runs on this machine: a worker for each core."""

from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from ..config import Config
from ..store import runs_root
from .engine import Ending, carry_out


class Local:
    """``workers`` runs at a time."""

    def __init__(self, address: str = "", workers: int = 1, options: Mapping[str, Any] | None = None) -> None:
        if address or options:
            raise ValueError("the local engine has no address and no options: leave them out, or choose ray or slurm")
        self.pool = ThreadPoolExecutor(workers)

    def submit(self, config: Config) -> "Future[Ending]":
        return self.pool.submit(carry_out, config.command, str(runs_root()))

    def wait(self, jobs: "Iterable[Future[Ending]]", seconds: float) -> "list[Future[Ending]]":
        return list(wait(jobs, timeout=seconds, return_when=FIRST_COMPLETED).done)

    def ending(self, job: "Future[Ending]") -> Ending:
        return job.result()

    def stop(self, jobs: "Iterable[Future[Ending]]") -> None:
        """Ctrl-C reaches the runs too, and they end by themselves; those that wait are not begun."""
        self.pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        self.pool.shutdown()
