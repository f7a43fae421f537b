"""What stands in the folders of the datasets: ``bitfreeze data list``, ``verify`` and ``where``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .catalog import DataFile, Dataset, datasets
from .errors import DataCorrupt
from .reading import read_verified


@dataclass(frozen=True)
class Status:
    """What stands in a dataset's folder, judged by the names of the files alone."""

    name: str
    description: str
    folder: Path
    state: Literal["carried", "here", "incomplete", "missing"]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class FileCheck:
    """The result of decoding a file. An ``unverified`` file decodes, but may not be the published one."""

    path: str
    state: Literal["sound", "unverified", "missing", "wrong"]
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.state in ("sound", "unverified")


@dataclass(frozen=True)
class Verification:
    """The results for all files of a dataset."""

    name: str
    folder: Path
    files: tuple[FileCheck, ...]

    @property
    def ok(self) -> bool:
        return all(file.ok for file in self.files)


def where(name: str, root: Path | str | None = None) -> Path:
    """The folder of a dataset, whether or not anything is in it."""
    return datasets[name].folder(root)


def status(root: Path | str | None = None) -> list[Status]:
    """What is there of each dataset, by name."""
    return [_status(datasets[name], root) for name in sorted(datasets)]


def _status(dataset: Dataset, root: Path | str | None) -> Status:
    folder = dataset.folder(root)
    missing = tuple(file.path for file in dataset.files if file.find(folder) is None)
    state: Literal["carried", "here", "incomplete", "missing"]
    if dataset.carried:
        state = "carried"
    elif not missing:
        state = "here"
    else:
        state = "missing" if len(missing) == len(dataset.files) else "incomplete"
    return Status(dataset.name, dataset.description, folder, state, missing)


def verify(name: str, root: Path | str | None = None) -> Verification:
    """Decode each file of a dataset and compare the arrays with their digest."""
    dataset = datasets[name]
    folder = dataset.folder(root)
    return Verification(name, folder, tuple(check_file(file, folder) for file in dataset.files))


def check_file(file: DataFile, folder: Path) -> FileCheck:
    """Find a file in its dataset's folder and decode it."""
    path = file.find(folder)
    if path is None:
        return FileCheck(file.path, "missing", f"{folder / file.path} is not there")
    try:
        read_verified(file, path)
    except DataCorrupt as error:
        return FileCheck(file.path, "wrong", str(error))
    doubt = file.doubt(path)
    return FileCheck(file.path, "sound") if doubt is None else FileCheck(file.path, "unverified", doubt)
