"""Where the runs of a sweep are carried out: on this machine, on a Ray cluster, by SLURM."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..registry import Registry
from .engine import Ending, Engine
from .local import Local
from .ray_cluster import RayCluster
from .slurm import Slurm

# (address, workers, options, folder of runs, device)
MakeEngine = Callable[[str, int | None, Mapping[str, Any], Path, str], Engine[Any]]
engines = Registry[MakeEngine]("engine")
engines.register("local", Local)
engines.register("ray", RayCluster)
engines.register("slurm", Slurm)

__all__ = ["Ending", "Engine", "Local", "RayCluster", "Slurm", "engines"]
