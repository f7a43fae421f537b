"""Getting one file over HTTP from several mirrors: resumed where it broke off, checked, and put in its place whole.

What has arrived is kept beside the file as ``<name>.part``, and where it came from as ``<name>.part.from``. A part is
only continued at the address that sent it, and only if the server still has the same file. Whoever calls this must see
to it that no other process gets the same file (lock.py).
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from .errors import DataCorrupt, DownloadFailed
from .progress import Progress, Step, silent

TIMEOUT = 20.0  # seconds, to connect and between two pieces
SLOWEST = 256  # bytes a second, below which a mirror counts as stalled
ATTEMPTS = 5  # at one mirror, as long as each of them brings something
PIECE = 1 << 16
REPORT_EVERY = 0.1  # seconds


@dataclass(frozen=True)
class Delivery:
    """The address that delivered, and in words what the ones tried before it answered."""

    address: str
    failures: tuple[str, ...]


def download(
    addresses: Sequence[str],
    target: Path,
    check: Callable[[Path], object] = lambda path: None,
    *,
    progress: Progress = silent,
    timeout: float = TIMEOUT,
) -> Delivery:
    """Put the file into its place from the first address that delivers it.

    ``check`` looks at the whole file before it is put there, and raises DataCorrupt if it is not the right one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Part(target)
    failures: list[str] = []
    for address in addresses:
        transfer = Transfer(address, part, progress, timeout)
        try:
            transfer.run(check)
        except MirrorFailed as failure:
            failures.append(f"{address}: {failure}")
        else:
            os.replace(part.path, target)
            part.discard()
            return Delivery(address, tuple(failures))
    raise DownloadFailed(f"no mirror delivered {target.name}:", tuple(failures))


class MirrorFailed(Exception):
    """What a mirror answered, in words."""


class BrokenOff(MirrorFailed):
    """The mirror began to deliver: it may go on if asked again."""


@dataclass(frozen=True)
class Origin:
    """Where a part came from, what the server called that version of the file, and how long it said it is."""

    address: str
    version: str | None
    length: int | None


class Part:
    """What has arrived of a file."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.from")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def origin(self) -> Origin | None:
        try:
            return Origin(**json.loads(self._note.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # none, or one that was only half written
            return None

    def begin(self, origin: Origin) -> None:
        self.path.write_bytes(b"")
        self._note.write_text(json.dumps(asdict(origin)), encoding="utf-8")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


class Transfer:
    """One mirror's attempts to complete a part."""

    def __init__(self, address: str, part: Part, progress: Progress, timeout: float) -> None:
        self.address, self.part, self.progress, self.timeout = address, part, progress, timeout
        self.text = f"{part.path.stem} from {urlsplit(address).hostname}"

    def run(self, check: Callable[[Path], object]) -> None:
        failure = MirrorFailed("not tried")
        for _ in range(ATTEMPTS):
            before = self._usable()
            try:
                self._complete()
                check(self.part.path)
                return
            except BrokenOff as broken:
                failure = broken
                if self.part.size() <= before:
                    break
            except DataCorrupt as wrong:
                failure = MirrorFailed(f"sent {self.part.size():,} bytes that are not the file: {wrong}")
                self.part.discard()
                if before == 0:  # else what was continued may have been at fault: once more, from the beginning
                    break
        raise failure

    def _usable(self) -> int:
        """How many bytes of the part this address can continue."""
        origin, size = self.part.origin(), self.part.size()
        if origin is None or origin.address != self.address or size > (origin.length or size):
            return 0
        return size

    def _complete(self) -> None:
        origin = self.part.origin()
        start = self._usable()
        if origin is not None and start and start == origin.length:
            return
        with self._open(start, origin) as response:
            self._receive(response)

    def _open(self, start: int, origin: Origin | None) -> HTTPResponse:
        """A response whose body goes on where the part now ends, which may be its beginning."""
        status = 416
        for begin in dict.fromkeys((start, 0)):
            response = self._ask(begin, origin)
            if response is None:
                continue
            if response.status == 200:  # asked for all, or ranges are not served, or the file has changed
                self.part.begin(Origin(self.address, _version(response), _number(response.headers["Content-Length"])))
                return response
            if response.status == 206 and begin and origin is not None and _continues(response, begin, origin):
                return response
            response.close()
            status = response.status
        raise MirrorFailed(f"answered {status} where 200 was due")

    def _ask(self, start: int, origin: Origin | None) -> HTTPResponse | None:
        """The response, or None where the server has no such range."""
        request = Request(self.address, headers={"User-Agent": "bitfreeze"})
        if start:
            request.add_header("Range", f"bytes={start}-")
            if origin is not None and origin.version is not None:
                request.add_header("If-Range", origin.version)
        try:
            response: HTTPResponse = urlopen(request, timeout=self.timeout)
            return response
        except HTTPError as error:
            error.close()
            if error.code == 416:
                return None
            raise MirrorFailed(f"answered {error.code} {error.reason}") from None
        except URLError as error:
            raise MirrorFailed(f"could not be reached ({error.reason})") from None
        except (OSError, HTTPException) as error:
            raise MirrorFailed(f"did not answer ({error or type(error).__name__})") from None

    def _receive(self, response: HTTPResponse) -> None:
        origin = self.part.origin()
        total = origin.length if origin is not None else None
        done = self.part.size()
        with self.part.path.open("ab") as file:
            reported = 0.0
            for piece in self._pieces(response, done):
                with _naming(self.part.path):
                    file.write(piece)
                done += len(piece)
                if time.monotonic() - reported >= REPORT_EVERY:
                    reported = time.monotonic()
                    self.progress(Step(self.text, done, total))
            _to_disk(file, self.part.path)
        self.progress(Step(self.text, done, total))
        if total is not None and done < total:
            raise BrokenOff(f"broke off after {done:,} of {total:,} bytes")
        if total is not None and done > total:
            self.part.discard()
            raise BrokenOff(f"sent {done:,} bytes after announcing {total:,}")

    def _pieces(self, response: HTTPResponse, done: int) -> Iterator[bytes]:
        since, mark = time.monotonic(), done
        while True:
            try:
                piece = response.read1(PIECE)
            except TimeoutError:
                raise BrokenOff(f"stalled after {done:,} bytes") from None
            except (OSError, HTTPException) as error:
                raise BrokenOff(f"broke off after {done:,} bytes ({error or type(error).__name__})") from None
            if not piece:
                return
            yield piece
            done += len(piece)
            if time.monotonic() - since > self.timeout:
                if done - mark < SLOWEST * self.timeout:
                    raise BrokenOff(f"stalled after {done:,} bytes")
                since, mark = time.monotonic(), done


def _continues(response: HTTPResponse, start: int, origin: Origin) -> bool:
    """Whether a 206 response is the rest of the same file."""
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers["Content-Range"] or "")
    if span is None or int(span[1]) != start:
        return False
    length, version = _number(span[3]), _version(response)
    same_length = None in (length, origin.length) or length == origin.length
    same_version = None in (version, origin.version) or version == origin.version
    return same_length and same_version


def _version(response: HTTPResponse) -> str | None:
    """What may stand in If-Range: a strong entity tag, or else a date."""
    tag: str | None = response.headers["ETag"]
    date: str | None = response.headers["Last-Modified"]
    return tag if tag is not None and tag.startswith('"') else date


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _to_disk(file: IO[bytes], path: Path) -> None:
    with _naming(path):
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A full disk is said to be full by name, and is nothing that another mirror could help with."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
