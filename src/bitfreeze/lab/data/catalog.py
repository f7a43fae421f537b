"""The catalogue of datasets: a record for each, registered by the file that reads the dataset.

To add a dataset, write a file with its record and its loader beside mnist.py and import that file in ``__init__.py``. A
record lists the files of the dataset, how each decodes to arrays, which mirrors and packages hold it, and how large it
is. Digests are those of the decoded arrays, because sources pack the same arrays in different ways.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..registry import Registry
from .limits import Contents
from .root import data_root

Arrays = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset, or a folder of files that is handled as one.

    path: its place in the dataset's folder, with forward slashes.
    read: decodes the file, wherever it stands and whatever its name; raises DataCorrupt if it is no such file.
    digest: ``array_digest`` of the decoded arrays, or None where nobody has computed it.
    also: other accepted names of the file, in an archive or put there by hand.
    published: checksums such as ``md5:...`` of the file as it is distributed, where no digest is known. Sources must
        deliver a file with such a checksum. Any other file that was put there by hand is used with a warning.
    """

    path: str
    read: Callable[[Path], Arrays]
    digest: str | None = None
    also: tuple[str, ...] = ()
    published: tuple[str, ...] = ()

    def find(self, folder: Path) -> Path | None:
        """Where the file stands in a folder, or None."""
        return next((folder / name for name in (self.path, *self.also) if (folder / name).exists()), None)

    def doubt(self, path: Path) -> str | None:
        """Why nobody can tell whether a file that decodes is the right one, or None if it can be told."""
        if self.digest is not None:
            return None
        if not self.published:
            return f"{self.path} has no known digest"
        matches = path.is_file() and any(_checksum(path, known.partition(":")[0]) == known for known in self.published)
        return None if matches else f"{self.path} is not the published file"


@dataclass(frozen=True)
class Download:
    """A file that mirrors serve: one of a dataset's files, or an archive that holds several.

    name: the file's name; a file that is no archive has the same ``path``.
    size: its published size in bytes. A mirror may send ``SLACK`` times as much, not more.
    mirrors: addresses, tried in this order.
    files: paths of the dataset's files that it gives.
    unpacked: what an archive holds (zip, tar or gzipped tar); None for a file that is no archive.
    """

    name: str
    size: int
    mirrors: tuple[str, ...]
    files: tuple[str, ...]
    unpacked: Contents | None = None


class Package(Protocol):
    """A package of another system that holds a dataset, for machines that reach only a package mirror."""

    @property
    def words(self) -> str:
        """The package's kind and name, for messages."""

    def fetch(self, folder: Path) -> None:
        """Put the dataset's files into an empty folder, or raise PackageFailed with the reason."""


@dataclass(frozen=True)
class Dataset:
    """A dataset: its files, and the places that deliver them."""

    name: str
    description: str
    files: tuple[DataFile, ...]
    downloads: tuple[Download, ...] = ()
    packages: tuple[Package, ...] = ()
    carried: bool = False  # within this package, so always there
    by_hand: str = ""  # how to obtain a dataset that nobody may pass on

    def folder(self, root: Path | str | None = None) -> Path:
        """The folder of the dataset's files below ``root`` (default: the data root)."""
        if self.carried:
            return Path(__file__).parent
        return (data_root() if root is None else Path(root).expanduser()).absolute() / self.name


datasets = Registry[Dataset]("dataset")


def register(dataset: Dataset) -> Dataset:
    """Add a dataset to the catalogue."""
    return datasets.register(dataset.name, dataset)


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
