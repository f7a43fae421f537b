"""Unpacking tar and zip files from elsewhere: plain files and folders, inside the given folder, or nothing at all."""

import errno
import gzip
import tarfile
import zipfile
from itertools import islice
from pathlib import Path

from .errors import DataCorrupt
from .idx import GZIP_MAGIC
from .limits import Contents, most

TAR_OVERHEAD = 2048  # bytes of headers and padding that a member may take in a tar file
FAULTS_OF_ARCHIVE = (None, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)


def unpack(archive: Path, folder: Path, known: Contents) -> None:
    """Write the members of a zip file, or of a tar file that may be gzipped, into a folder.

    All members are looked at before the first one is written. ``known`` is what the archive should hold: an archive
    that holds more than ``SLACK`` times as much is refused, and never decompressed beyond that.
    """
    try:
        if zipfile.is_zipfile(archive):
            _unpack_zip(archive, folder, known)
        else:
            _unpack_tar(archive, folder, known)
    except DataCorrupt:
        raise
    except Exception as error:  # the readers raise many kinds for broken archives
        if isinstance(error, OSError) and error.errno not in FAULTS_OF_ARCHIVE:
            raise
        raise DataCorrupt(f"{archive} cannot be unpacked ({error or type(error).__name__})") from error


def _unpack_zip(archive: Path, folder: Path, known: Contents) -> None:
    """zipfile itself writes every member inside the folder, and a link as a plain file that holds its target."""
    with zipfile.ZipFile(archive) as file:
        _require_moderate(archive, [member.file_size for member in file.infolist()], known)
        file.extractall(folder)


def _unpack_tar(archive: Path, folder: Path, known: Contents) -> None:
    with archive.open("rb") as file:
        zipped = file.read(2) == GZIP_MAGIC
    most_bytes = most(known.bytes) + most(known.members) * TAR_OVERHEAD
    with (
        _BoundedGzip(archive, most_bytes) if zipped else archive.open("rb") as stream,
        tarfile.open(fileobj=stream, mode="r:") as tar,
    ):
        members = list(islice(tar, most(known.members) + 1))
        _require_moderate(archive, [member.size for member in members], known)
        for member in members:
            if not (member.isreg() or member.isdir()):
                raise DataCorrupt(f"{archive} is refused: its member {member.name!r} is a link or a device")
        inside = [tarfile.data_filter(member, str(folder)) for member in members]
        tar.extractall(folder, inside, filter="data")


class _BoundedGzip(gzip.GzipFile):
    """A gzipped file of which no more than ``most_bytes`` are ever decompressed."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        super().__init__(path)
        self.most_bytes = most_bytes

    def read(self, size: int | None = -1) -> bytes:
        self._require_within(self.tell() + size if size is not None and size >= 0 else -1)
        return super().read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._require_within(offset)
        return super().seek(offset, whence)

    def _require_within(self, end: int) -> None:
        if not 0 <= end <= self.most_bytes:
            raise DataCorrupt(f"{self.name} is refused: it unpacks to more than {self.most_bytes:,} bytes")


def _require_moderate(archive: Path, sizes: list[int], known: Contents) -> None:
    if len(sizes) > most(known.members):
        raise DataCorrupt(f"{archive} is refused: it has more than {most(known.members):,} members")
    if sum(map(abs, sizes)) > most(known.bytes):
        raise DataCorrupt(f"{archive} is refused: it unpacks to more than {most(known.bytes):,} bytes")
