"""Where the runs of a sweep are carried out: on this machine, on a Ray cluster, by SLURM."""

from collections.abc import Callable, Mapping
from typing import Any

from .engine import Ending, Engine
from .local import Local
from .ray_cluster import RayCluster
from .slurm import Slurm

engines: dict[str, Callable[[str, int, Mapping[str, Any]], Engine[Any]]] = {
    "local": Local, "ray": RayCluster, "slurm": Slurm,
}  # fmt: skip

__all__ = ["Ending", "Engine", "Local", "RayCluster", "Slurm", "engines"]
