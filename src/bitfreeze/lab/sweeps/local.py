"""Runs on this machine, several at a time."""

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from ..runs.config import Config
from ..runs.folder import runs_root
from .engine import Ending, Options, carry_out


class Local:
    """``workers`` runs at a time, below ``root``."""

    def __init__(self, address: str = "", workers: int = 1, options: Options = None, root: Path | None = None) -> None:
        if address or options:
            raise ValueError("the local engine has no address and no options: leave them out, or choose ray or slurm")
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.pool, self.root = ThreadPoolExecutor(workers), runs_root(root)

    def submit(self, config: Config) -> "Future[Ending]":
        return self.pool.submit(carry_out, config.command, str(self.root))

    def wait(self, jobs: "Iterable[Future[Ending]]", seconds: float) -> "list[Future[Ending]]":
        return list(wait(jobs, timeout=seconds, return_when=FIRST_COMPLETED).done)

    def ending(self, job: "Future[Ending]") -> Ending:
        return job.result()

    def stop(self, jobs: "Iterable[Future[Ending]]") -> None:
        """Begin no more runs. Ctrl-C reaches those that go on too, and they end by themselves."""
        self.pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        self.pool.shutdown()
