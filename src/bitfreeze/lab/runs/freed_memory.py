"""Memory that a training step frees: kept for the next step."""

import ctypes
import os
import platform
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # options of mallopt in malloc.h
KEPT = {TRIM_THRESHOLD: 2**31 - 1, MMAP_THRESHOLD: 2**30}  # bytes


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep the memory of freed tensors, for all of this process; returns whether it does.

    It gives the memory of large gradients back to the system after each step and gets it again in the next, page by
    page, which takes an eighth to a quarter of a step. What the environment says of malloc is left as it is.
    """
    if platform.libc_ver()[0] != "glibc" or _is_set_by_user():
        return False
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(option, size) == 1 for option, size in KEPT.items())


def _is_set_by_user() -> bool:
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in os.environ
    )
