"""What decides a run's last bits besides its settings: versions, threads, processor, our own code, and odd data."""

import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..data import data_root, find_dataset
from ..data.reading import doubts
from ..distributed import world

SOURCE = Path(__file__).parents[1]
PARTS = ("", "fisher", "nets", "data", "streams", "methods", "training", "rl")


def environment(packages: Iterable[str] = (), datasets: Iterable[str] = ()) -> dict[str, Any]:
    """``datasets``: those of which some are named as unverified if they are not the published files."""
    ranks, unverified = world().count, _unverified(tuple(datasets), data_root())
    return {
        **({"ranks": ranks} if ranks > 1 else {}),
        "bitfreeze": code_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        **{name: found for name in packages if (found := _version(name))},
        **({"data": f"{' and '.join(unverified)} unverified"} if unverified else {}),
    }


def _version(package: str) -> str:
    """Empty where it is not installed: classic control needs no Atari."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@cache  # checksums of large files: once a process
def _unverified(names: tuple[str, ...], root: Path) -> list[str]:
    return [name for name in names if doubts(dataset := find_dataset(name), dataset.folder(root))]


@cache
def code_version() -> str:
    """The version and a digest of what a run is computed with: two states of a checkout have the same version."""
    digest = hashlib.sha256()
    for part in PARTS:
        for file in sorted((SOURCE / part).glob("*.py")):
            digest.update(file.name.encode() + file.read_bytes())
    return f"{version('bitfreeze')} ({digest.hexdigest()[:8]})"
