"""The environment of a run, which decides its last bits: versions, threads, processor, this code, unverified data."""

import hashlib
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...model.ranks import current_ranks
from ..data import data_root, datasets
from ..data.reading import doubts
from ..devices import current_device, described

SOURCE = Path(__file__).parents[2]
# folders and files that start runs or look at them
VIEWS = ("integrations", "lab/__init__.py", "lab/face", "lab/runs", "lab/sweeps", "lab/results", "lab/cli")


def environment(
    packages: Iterable[str] = (), datasets: Iterable[str] = (), precision: str = "float32"
) -> dict[str, Any]:
    """The environment as config.toml has it. Named are those of ``datasets`` that are not the published files, and a
    precision below float32."""
    ranks, unverified = current_ranks().count, _unverified(tuple(datasets), data_root())
    return {
        **({"ranks": ranks} if ranks > 1 else {}),
        "bitfreeze": code_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "device": described(current_device()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        **{name: found for name in packages if (found := _version(name))},
        **({"precision": precision} if precision != "float32" else {}),
        **({"data": f"{' and '.join(unverified)} unverified"} if unverified else {}),
    }


def _version(package: str) -> str:
    """The version of a package; empty where it is not installed, because classic control needs no Atari."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@cache  # checksums of large files: once a process
def _unverified(names: tuple[str, ...], root: Path) -> list[str]:
    return [name for name in names if doubts(dataset := datasets[name], dataset.folder(root))]


@cache
def code_version() -> str:
    """The version and a digest of the source that runs are computed with: a version has many states of the source."""
    digest = hashlib.sha256()
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE).as_posix()
        if not place.startswith(VIEWS):
            digest.update(place.encode() + file.read_bytes())
    return f"{__version__} ({digest.hexdigest()[:8]})"
