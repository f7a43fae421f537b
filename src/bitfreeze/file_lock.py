"""A lock on a file, which goes with its process, however that ends."""

import errno
import sys
from typing import IO, Any


def try_to_lock(file: IO[Any]) -> bool:
    """False where another process has it."""
    try:
        _lock(file.fileno())
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


if sys.platform == "win32":
    import msvcrt

    def _lock(number: int) -> None:
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)

    def unlock(file: IO[Any]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(file: IO[Any]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
