"""Files that are whole or not there, also after a power cut."""

import errno
import os
from pathlib import Path

_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)  # file systems that do not sync folders


def write_aside(file: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, to the disk itself."""
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder: give the name of a file")
    aside = file.with_name(f".{file.name}.part")
    try:
        write_through(aside, content.encode() if isinstance(content, str) else content)
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def write_through(file: Path, data: bytes) -> None:
    """Write to the disk itself, so that a power cut later takes nothing of it."""
    with file.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last. Some file systems cannot, and do not need to."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(handle)
