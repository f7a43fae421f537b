"""Several processes that talk to each other: each runs one function of a file, and what it returns is compared."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
import torch.distributed as dist

TIMEOUT = 150
WARNINGS = "-W", "error", "-W", "ignore:forward predicts"  # untrained models do so no better than a guess


def run_ranks(file: str, function: str, folder: Path, count: int = 2) -> list[Any]:
    """What ``function`` of ``file`` returns on each of ``count`` ranks, in processes of their own."""
    meeting = f"file://{folder}/{uuid4().hex}"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, *WARNINGS, file, function, str(rank), str(count), str(folder), meeting],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        output = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(output)
    return [torch.load(folder / f"{function}{rank}.pt") for rank in range(count)]


def run_ranks_once(file: str, function: str, folders: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """The same, and the folder it was done in. Where tests run in several workers, it is done in one of them."""
    if "fully_shard" in Path(file).read_text() and torch.__version__.startswith("2.6."):
        pytest.skip("fully_shard of torch 2.6 does not run on a CPU")
    base = folders.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{Path(file).stem}-{function}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            run_ranks(file, function, folder)
            done.touch()
    return [torch.load(folder / f"{function}{rank}.pt") for rank in range(2)], folder


def be_a_rank(functions: dict[str, Callable[[int, int], Any]]) -> None:
    """The main program of a file that run_ranks() is given."""
    name, rank, count, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=sys.argv[5], rank=rank, world_size=count, timeout=timedelta(seconds=60))
    torch.save(functions[name](rank, count), folder / f"{name}{rank}.pt")
    dist.destroy_process_group()
    # Without Python's own end: models that are sharded or trained in parallel keep the group, and a thread of Gloo that
    # drops a tensor while Python ends aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
