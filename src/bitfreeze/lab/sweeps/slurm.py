"""Runs as SLURM jobs, through submitit. A job that is preempted or out of time is queued again and goes on."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..._messages import install
from ..runs.config import Config
from ..runs.folder import runs_root
from .engine import Ending, Options, carry_out


class Slurm:
    """``address`` "local" tries jobs out on this machine, without SLURM.

    ``options`` are those of submitit's executor: timeout_min, slurm_partition, mem_gb and so on. All nodes must see the
    folder of runs. Where a GPU is asked for, each job gets one.
    """

    def __init__(
        self, address: str = "", workers: int | None = None, options: Options = None, root: Path | None = None,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        try:
            import submitit
        except ModuleNotFoundError as missing:
            raise ValueError(f"the engine slurm needs the extra 'slurm': {install('slurm')}") from missing
        self.root = runs_root(root).resolve()
        try:
            self.executor = submitit.AutoExecutor(folder=self.root / ".slurm", cluster=address or "slurm")
        except RuntimeError as error:
            raise ValueError(f"{error}: start this where sbatch is, or use --address local to try it out") from None
        self.device = device
        gpus = {"gpus_per_node": 1} if device.partition(":")[0] == "cuda" else {}
        self.executor.update_parameters(**{"cpus_per_task": 1, "timeout_min": 24 * 60, **gpus, **(options or {})})

    def submit(self, config: Config) -> Any:
        return self.executor.submit(RunJob(config.command, str(self.root), self.device))

    def wait(self, jobs: Iterable[Any], seconds: float) -> list[Any]:
        end = time.monotonic() + seconds
        while True:
            done = [job for job in jobs if job.done()]
            if done or time.monotonic() > end:
                return done
            time.sleep(0.2)

    def ending(self, job: Any) -> Ending:
        failure = job.exception()
        if failure is not None:
            return Ending(str(failure).strip().splitlines()[-1])
        ending: Ending = job.result()
        return ending

    def stop(self, jobs: Iterable[Any]) -> None:
        for job in jobs:
            job.cancel()

    def close(self) -> None:
        """Logs stay below .slurm in the folder of runs."""


class RunJob:
    """The call that a job makes. submitit calls ``checkpoint`` when SLURM is about to end the job, and queues its
    result."""

    def __init__(self, command: str, runs: str, device: str) -> None:
        self.command, self.runs, self.device = command, runs, device

    def __call__(self) -> Ending:
        return carry_out(self.command, self.runs, self.device)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
