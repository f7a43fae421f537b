"""The number of threads of a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from ..nets import networks
from .config import Config
from .folder import RunFolder

Threads = int | Literal["auto"]


def number_of(threads: Threads, config: Config, folder: RunFolder) -> int:
    """The given number. For "auto" the number that a run on disk has, because others would change its last bits; else
    one for each free core if the steps of its network are long enough to share, and 1 if not."""
    if threads != "auto":
        if not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads must be a whole number of at least 1, or auto, got {threads!r}")
        return threads
    if (folder.path / "config.toml").exists():
        return int(folder.read_config()["environment"].get("threads", 1))
    return 1 if networks[config.network["kind"]].quick else free_cores()


def free_cores() -> int:
    """Cores for one rank that are idle, at least 1. With more threads than idle cores each step waits for the last."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    idle = round(allowed - os.getloadavg()[0])  # the mean of the last minute
    return max(1, idle // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use this many threads, and put the number back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
