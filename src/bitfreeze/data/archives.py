"""Unpacking tar and zip files from elsewhere: plain files and folders, inside the given folder, or nothing at all."""

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from .errors import DataCorrupt, UnsafeArchive

MOST_BYTES = 16 << 30


def unpack(archive: Path, folder: Path) -> None:
    """Write an archive's members into a folder. All of them are looked at before the first one is written."""
    with _clear_errors(archive):
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, folder)
        else:
            _unpack_tar(archive, folder)


def _unpack_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            _require_inside(archive, member.name)
            if not (member.isdir() or member.isreg()) or member.issparse():
                raise UnsafeArchive(f"{archive} is refused: {member.name!r} in it is a link, a device or the like")
        plain = {member.name: member for member in members if member.isreg()}
        _require_moderate(archive, sum(member.size for member in plain.values()))
        for name, member in plain.items():
            source = tar.extractfile(member)
            if source is not None:
                _write(source, folder, name)


def _unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        for member in members:
            _require_inside(archive, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UnsafeArchive(f"{archive} is refused: {member.filename!r} in it is a link, a device or the like")
        plain = {member.filename: member for member in members if not member.is_dir()}
        _require_moderate(archive, sum(member.file_size for member in plain.values()))
        for name, member in plain.items():
            with file.open(member) as source:
                _write(source, folder, name)


def _require_inside(archive: Path, name: str) -> None:
    windows = PureWindowsPath(name)  # splits at both kinds of slash and knows drives
    if not name or windows.anchor or ".." in windows.parts or "\\" in name:
        raise UnsafeArchive(f"{archive} is refused: its member {name!r} would be written outside the folder")
    if "\0" in name or any(len(part.encode()) > 255 for part in windows.parts):
        raise UnsafeArchive(f"{archive} is refused: its member {name[:40]!r}… has a name that no file can have")


def _require_moderate(archive: Path, size: int) -> None:
    if size > MOST_BYTES:
        raise UnsafeArchive(f"{archive} is refused: it unpacks to {size:,} bytes, more than any dataset here has")


def _write(source: IO[bytes], folder: Path, name: str) -> None:
    target = folder / PurePosixPath(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


@contextmanager
def _clear_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataCorrupt(f"{archive} is no archive, or a broken one ({error})") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise DataCorrupt(f"{archive} holds a file and a folder of the same name") from error
    except OSError as error:
        if error.errno is not None:  # the disk's fault; decoders give no number
            raise
        raise DataCorrupt(f"{archive} is a broken archive ({error})") from error
    except (NotImplementedError, RuntimeError) as error:  # zipfile's words for unknown compression and for passwords
        raise DataCorrupt(f"{archive} cannot be unpacked ({error})") from error
