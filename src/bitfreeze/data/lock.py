"""One process at a time in a dataset's folder."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..file_lock import try_to_lock, unlock

PAUSE = 0.1


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock that the file stands for, calling ``waiting`` once if another process has it."""
    with path.open("ab") as file:
        if not _try(file, path):
            waiting()
            while not _try(file, path):
                time.sleep(PAUSE)
        try:
            yield
        finally:
            unlock(file)


def _try(file: IO[bytes], path: Path) -> bool:
    try:
        return try_to_lock(file)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path.parent} is on a file system without file locks ({error.strerror}): set BITFREEZE_DATA to a "
            "folder on a local disk",
        ) from error
