"""What each rank does in test_torchrun.py: runs of the laboratory."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bitfreeze.lab.methods import make_method, methods
from bitfreeze.lab.nets import MultiHead
from bitfreeze.lab.nets.norms import TaskNorm
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.errors import RunRefused
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.training import Settings, Training
from support.ranks import be_a_rank

CHANGES = ["training.epochs=3", "network.hidden=[16]", "training.batch=31"]  # odd: parts of different sizes
PARALLEL = {name: (name, CHANGES) for name, method in methods.items() if method.record.data_parallel}
PARALLEL["blip by weight"] = ("blip", [*CHANGES, "method.rules=strict"])
PARALLEL["blip with levels"] = ("blip", [*CHANGES, "method.rules=following", "method.levels=true"])
for _name in ("domain", "class"):
    PARALLEL[f"blip, scenario {_name}"] = ("blip", [*CHANGES, f"stream.scenario={_name}"])


def lab(rank: int, count: int) -> dict[str, Any]:
    """Every method that can, and one that cannot. Ranks see different disks: only the first one writes."""
    root = Path(sys.argv[4]) / f"disk of rank {rank}"
    found: dict[str, Any] = {}
    for name, (method, changes) in PARALLEL.items():
        found[name] = run(make_config("digits5", method, changes=changes), root).acc
    again = run(make_config("digits5", "ft", changes=CHANGES), root)  # finished: not done again
    found["again"] = again.acc
    try:
        run(make_config("digits5", "er", changes=CHANGES), root)
    except (RunRefused, RuntimeError) as error:
        found["refused"] = str(error)
    found["norm"] = norm_after_an_epoch()
    return found


def norm_after_an_epoch() -> list[float]:
    """The statistics of a normalised network, each rank of which saw other samples, and its validation loss."""
    torch.manual_seed(0)
    stream = make_stream("digits5")
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), TaskNorm(4, 5, "first"))
    method = make_method("ft", {})
    net = method.build(MultiHead(backbone, 4, [task.classes for task in stream.tasks]), stream.tasks)
    task = stream.tasks[0]
    (epoch,) = Training(method, net, task, stream.load(task), Settings(lr=0.1, epochs=1), seed=0).epochs()
    return [*backbone[2].means.flatten().tolist(), *backbone[2].variances.flatten().tolist(), epoch.valid_loss]


if __name__ == "__main__":
    be_a_rank({"lab": lab})
