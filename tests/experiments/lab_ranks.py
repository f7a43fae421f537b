"""What each rank does in test_torchrun.py: runs of the laboratory."""

import sys
from pathlib import Path
from typing import Any

from bitfreeze.experiments.config import make_config
from bitfreeze.experiments.runner import run
from bitfreeze.experiments.store import RunRefused
from bitfreeze.methods import methods
from ranks import be_a_rank

CHANGES = ["training.epochs=3", "network.hidden=[16]", "training.batch=31"]  # odd: parts of different sizes
PARALLEL = [name for name, method in methods.items() if method.record.data_parallel]


def lab(rank: int, count: int) -> dict[str, Any]:
    """Every method that can, and one that cannot. Ranks see different disks: only the first one writes."""
    root = Path(sys.argv[4]) / f"disk of rank {rank}"
    found: dict[str, Any] = {}
    for method in PARALLEL:
        found[method] = run(make_config("digits5", method, changes=CHANGES), root)["acc"]
    again = run(make_config("digits5", "ft", changes=CHANGES), root)  # finished: not done again
    found["again"] = again["acc"]
    try:
        run(make_config("digits5", "er", changes=CHANGES), root)
    except (RunRefused, RuntimeError) as error:
        found["refused"] = str(error)
    return found


if __name__ == "__main__":
    be_a_rank({"lab": lab})
