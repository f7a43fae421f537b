"""One process at a time in a dataset's folder. The lock goes with its process, however that ends."""

import errno
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PAUSE = 0.1


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock that the file stands for, calling ``waiting`` once if another process has it."""
    with path.open("ab") as file:
        if not _try_to_lock(file, path):
            waiting()
            while not _try_to_lock(file, path):
                time.sleep(PAUSE)
        try:
            yield
        finally:
            _unlock(file.fileno())


def _try_to_lock(file: IO[bytes], path: Path) -> bool:
    try:
        _lock(file.fileno())
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise OSError(
            error.errno,
            f"{path.parent} is on a file system without file locks ({error.strerror}): set BITFREEZE_DATA to a "
            "folder on a local disk",
        ) from error
    return True


if sys.platform == "win32":
    import msvcrt

    def _lock(number: int) -> None:
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)

    def _unlock(number: int) -> None:
        msvcrt.locking(number, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_UN)
