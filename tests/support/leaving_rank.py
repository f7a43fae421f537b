"""A rank that torchrun starts in test_torchrun.py: it trains, leaves the others, and names the threads left."""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bitfreeze.lab.runs.torchrun import joined_ranks


def names_of_threads() -> list[str]:
    return [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]


def train() -> None:
    model = DistributedDataParallel(nn.Linear(2, 2), find_unused_parameters=True)
    model.cycle = model  # type: ignore[assignment]  # only the garbage collector takes it away
    model(torch.ones(1, 2)).sum().backward()


if __name__ == "__main__":
    with joined_ranks(torch.device("cpu")):
        train()
        during = names_of_threads()
    folder = Path(sys.argv[1])
    (folder / f"during{os.environ['RANK']}").write_text("\n".join(during))
    (folder / f"after{os.environ['RANK']}").write_text("\n".join(names_of_threads()))
