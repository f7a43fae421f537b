"""Downloading a file from the first of several mirrors that delivers it.

pooch receives the file in a thread of its own while the caller's thread watches. So the caller stops waiting in time
whatever the mirror does, and everything on which pooch stumbles is the failure of that mirror.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import responses
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from .errors import DataCorrupt, DownloadFailed
from .extras import lab_module
from .limits import most
from .progress import Progress, Step, silent

STALL = 20.0  # seconds without a new piece after which a mirror has failed
DEADLINE = 3600.0  # seconds that a mirror has for a file
PIECE = 1 << 13  # bytes: a mirror that sends less than one in STALL seconds has stalled
WATCH_EVERY = 0.1  # seconds
HEADERS = {"User-Agent": "bitfreeze", "Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Delivery:
    """The address that delivered, and a sentence for each address that failed before."""

    address: str
    failures: tuple[str, ...]


def download(
    addresses: Sequence[str],
    target: Path,
    size: int,
    check: Callable[[Path], object],
    *,
    progress: Progress = silent,
    stall: float = STALL,
    deadline: float = DEADLINE,
) -> Delivery:
    """Write ``target`` from the first address that delivers a file which passes ``check``.

    ``size`` is the published size in bytes. ``check`` raises DataCorrupt if the file is not the right one.
    """
    failures: list[str] = []
    for address in addresses:
        try:
            _receive(address, target, size, progress, stall, deadline)
            check(target)
        except MirrorFailed as failure:
            failures.append(f"{address}: {failure}")
        except DataCorrupt as wrong:
            failures.append(f"{address}: sent {target.stat().st_size:,} bytes that are not the file: {wrong}")
        else:
            return Delivery(address, tuple(failures))
    raise DownloadFailed(f"no mirror delivered {target.name}:", tuple(failures))


class MirrorFailed(Exception):
    """A sentence without its subject, which is the mirror."""


def _receive(address: str, target: Path, size: int, progress: Progress, stall: float, deadline: float) -> None:
    text = f"{target.name} from {urlsplit(address).hostname}"
    began = moved = time.monotonic()
    reported = 0
    with target.open("wb") as file:  # once it is closed, a transfer that was given up ends with its next piece
        transfer = _Transfer(address, file, most(size), 2 * stall)
        transfer.start()
        while transfer.is_alive():
            transfer.join(WATCH_EVERY)
            now = time.monotonic()
            if transfer.done > reported:
                reported, moved = transfer.done, now
                progress(Step(text, reported, size))
            if now - moved > stall:
                raise MirrorFailed(f"stalled for {stall:g} seconds after {reported:,} bytes")
            if now - began > deadline:
                raise MirrorFailed(f"took more than {deadline:g} seconds for {reported:,} bytes")
    if transfer.disk_failure is not None:
        raise OSError(transfer.disk_failure.errno, transfer.disk_failure.strerror, str(target))
    if transfer.failure is not None:
        raise transfer.failure
    progress(Step(text, transfer.done, transfer.done))


class _Transfer(threading.Thread):
    """Receives what one address sends. pooch writes to it as to a file."""

    def __init__(self, address: str, file: IO[bytes], most_bytes: int, timeout: float) -> None:
        super().__init__(daemon=True)
        self.address, self.file, self.most_bytes = address, file, most_bytes
        self.done = 0
        self.response: Any = None
        self.failure: MirrorFailed | None = None
        self.disk_failure: OSError | None = None
        self.receive = lab_module("pooch").HTTPDownloader(
            chunk_size=PIECE, timeout=timeout, headers=HEADERS, hooks={"response": self._require_ok}
        )

    def run(self) -> None:
        try:
            self.receive(self.address, self, None)
        except MirrorFailed as failure:
            self.failure = failure
        except Exception as error:
            self.failure = MirrorFailed(f"failed after {self.done:,} bytes ({_cause(error)})")
        finally:
            if self.response is not None:  # pooch leaves it open
                self.response.close()

    def write(self, piece: bytes) -> None:
        if self.done + len(piece) > self.most_bytes:
            raise MirrorFailed(f"sent more than {self.most_bytes:,} bytes, the most that the file may have")
        try:
            self.file.write(piece)
            self.file.flush()
        except OSError as error:
            self.disk_failure = error
            raise
        self.done += len(piece)

    def flush(self) -> None:
        """Do nothing: pooch calls this after each piece, which is on the disk by then."""

    def _require_ok(self, response: Any, **_: Any) -> None:
        """Look at a response before its body is read. requests would read a redirection's body, however long it is."""
        self.response = response
        if response.is_redirect:
            response.close()
        elif response.status_code != 200:
            raise MirrorFailed(f"answered {response.status_code} {responses.get(response.status_code, '')}".rstrip())


def _cause(error: BaseException) -> str:
    """The words of the first of a chain of errors, without what a mirror may have put in to spoil a terminal."""
    while deeper := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = deeper
    words = "".join(filter(str.isprintable, str(error))) or type(error).__name__
    return words if len(words) <= 200 else f"{words[:200]}…"
