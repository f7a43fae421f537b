"""Runs on this machine, several at a time."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import cycle
from pathlib import Path
from queue import SimpleQueue

from ..devices import devices_to_deal
from ..runs.config import Config
from ..runs.folder import runs_root
from .engine import Ending, Options, ending_of, start

PATIENCE = 5.0  # seconds that runs have to end by themselves
STOPPED = Ending("stopped before it began")


class Local:
    """``workers`` runs at a time, below ``root``, dealt to the devices that ``device`` means.

    By default as many as there are cores, or on devices other than the CPU one on each.
    """

    def __init__(
        self, address: str = "", workers: int | None = None, options: Options = None, root: Path | None = None,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        if address or options:
            raise ValueError("the local engine has no address and no options: leave them out, or choose ray or slurm")
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        devices = devices_to_deal(device)
        count = workers or ((os.cpu_count() or 1) if devices == ["cpu"] else len(devices))
        self.pool, self.root = ThreadPoolExecutor(count), runs_root(root)
        self.idle: SimpleQueue[str] = SimpleQueue()  # a device for each worker, the least used first
        for _, name in zip(range(count), cycle(devices), strict=False):
            self.idle.put(name)
        self.processes: set[subprocess.Popen[str]] = set()
        self.stopped = False

    def submit(self, config: Config) -> "Future[Ending]":
        return self.pool.submit(self._carry_out, config.command)

    def _carry_out(self, command: str) -> Ending:
        device = self.idle.get()
        try:
            return self._carry_out_on(device, command)
        finally:
            self.idle.put(device)

    def _carry_out_on(self, device: str, command: str) -> Ending:
        if self.stopped:
            return STOPPED
        process = start(command, str(self.root), device)
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
