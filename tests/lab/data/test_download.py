"""The downloader against a real server that does what servers do on bad days, and what hostile ones do."""

import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bitfreeze.lab.data import DataCorrupt, DownloadFailed, Step
from bitfreeze.lab.data import download as downloading
from bitfreeze.lab.data.download import Delivery, download
from bitfreeze.lab.data.limits import SLACK
from support.mirror_server import (
    Answer,
    MirrorServer,
    announcing,
    chunked,
    dripping_body,
    dripping_headers,
    good,
    mute,
    raw,
    redirecting,
    stalling,
    status,
)

BODY = os.urandom(200_000)
HALF = len(BODY) // 2
MOST = int(SLACK * len(BODY))
OTHER = BODY[:1000] + bytes([BODY[1000] ^ 1]) + BODY[1001:]
TOO_MUCH = f"sent more than {MOST:,} bytes, the most that the file may have"


def check(path: Path) -> None:
    if path.read_bytes() != BODY:
        raise DataCorrupt(f"{path.name} is wrong")


def fetch(folder: Path, *addresses: str, check: Callable[[Path], None] = check, **options) -> Delivery:
    return download(addresses, folder / "file", len(BODY), check, **options)


NO_LENGTH = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nmany\r\n"
LONG_HEADER = b"HTTP/1.0 200 OK\r\nX: " + b"x" * 100_000
MANY_HEADERS = b"HTTP/1.0 200 OK\r\n" + b"X: x\r\n" * 999
FAULTS: dict[str, tuple[Answer, str]] = {
    "not found": (status(404), "answered 404 Not Found"),
    "forbidden": (status(403), "answered 403 Forbidden"),
    "server error": (status(500), "answered 500 Internal Server Error"),
    "no content": (status(204), "answered 204 No Content"),
    "a range unasked": (status(206), "answered 206 Partial Content"),
    "a code that does not exist": (status(799), "answered 799"),
    "cuts off": (announcing(len(BODY), BODY[:HALF]), "failed after 98,304 bytes (IncompleteRead("),
    "cuts off a chunk": (chunked(BODY, whole=False), "failed after 100,000 bytes (Response ended prematurely"),
    "announces too much": (announcing(len(BODY) + 9, BODY), "failed after 196,608 bytes (IncompleteRead("),
    "announces too little": (announcing(1000, BODY), "sent 1,000 bytes that are not the file: file is wrong"),
    "announces nothing": (announcing(0, b""), "sent 0 bytes that are not the file"),
    "announces 5,000 digits": (announcing("9" * 5000, BODY), "failed after 0 bytes (Exceeds the limit (4300 digits)"),
    "announces no number": (announcing("many", BODY), "failed after 0 bytes (invalid literal for int()"),
    "announces less than nothing": (announcing(-5, b""), "sent 0 bytes that are not the file"),
    "corrupt bytes": (good(OTHER), f"sent {len(OTHER):,} bytes that are not the file: file is wrong"),
    "a web page": (good(b"<html>Please log in</html>"), "sent 26 bytes that are not the file"),
    "a chunk of no length": (raw(NO_LENGTH), "failed after 0 bytes"),
    "no HTTP": (raw(b"220 mail.example.org ESMTP\r\n"), "failed after 0 bytes (220 mail.example.org"),
    "hangs up": (raw(b""), "failed after 0 bytes (Remote end closed connection"),
    "a header without end": (raw(LONG_HEADER), "failed after 0 bytes (got more than 65536"),
    "headers without end": (raw(MANY_HEADERS), "failed after 0 bytes (got more than 100"),
    "a terminal's commands": (raw(b"\x1b[2J\x1b]0;owned\x07\r\n"), "failed after 0 bytes ([2J]0;owned)"),
    "redirects to itself": (redirecting(b"/bad"), "failed after 0 bytes (Exceeded 30 redirects"),
    "redirects to nowhere": (redirecting(b"http://"), "failed after 0 bytes ("),
    "redirects to half an address": (redirecting(b"http://[::1"), "failed after 0 bytes ("),
    "redirects to no text": (redirecting(b"http://\xff\xfe\x80/"), "failed after 0 bytes ("),
    "redirects to no port": (redirecting(b"http://127.0.0.1:99999999/"), "failed after 0 bytes ("),
    "redirects to a file": (redirecting(b"file:///etc/passwd"), "failed after 0 bytes ("),
    "redirects at length": (redirecting(b"/gone", endless_body=True), "answered 404 Not Found"),
    "sends without end": (dripping_body(bytes(1 << 16), 0.0), TOO_MUCH),
    "sends too much": (good(BODY + BODY), TOO_MUCH),
    "a small body that decodes to much": (
        announcing(len(gzip.compress(bytes(10_000_000))), gzip.compress(bytes(10_000_000)), Content_Encoding="gzip"),
        TOO_MUCH,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_bad_mirror_the_good_one_delivers(server: MirrorServer, tmp_path: Path, fault: str) -> None:
    answer, words = FAULTS[fault]
    bad, fine = server.serve("/bad", answer), server.serve("/good", good(BODY))
    delivery = fetch(tmp_path, bad, fine)
    assert delivery.address == fine
    (failure,) = delivery.failures
    assert failure.startswith(f"{bad}: {words}")
    assert failure.isprintable()
    assert len(failure) < 400
    assert (tmp_path / "file").read_bytes() == BODY


SLOW: dict[str, tuple[Answer, str]] = {
    "never answers": (mute, "stalled for 0.5 seconds after 0 bytes"),
    "stalls": (stalling(BODY, HALF), "stalled for 0.5 seconds after 98,304 bytes"),
    "stalls at once": (stalling(BODY, 0), "stalled for 0.5 seconds after 0 bytes"),
    "drips its headers": (dripping_headers(0.02), "stalled for 0.5 seconds after 0 bytes"),
    "drips its body": (dripping_body(b"x", 0.02), "stalled for 0.5 seconds after 0 bytes"),
    "sends just enough": (dripping_body(bytes(1 << 13), 0.15), "took more than 1 seconds for "),
}


@pytest.mark.parametrize("fault", SLOW)
def test_nobody_waits_long_for_a_slow_mirror(server: MirrorServer, tmp_path: Path, fault: str) -> None:
    answer, words = SLOW[fault]
    bad, fine = server.serve("/bad", answer), server.serve("/good", good(BODY))
    began = time.monotonic()
    delivery = fetch(tmp_path, bad, fine, stall=0.5, deadline=1.0)
    assert time.monotonic() - began < 5
    assert delivery.failures[0].startswith(f"{bad}: {words}")
    assert (tmp_path / "file").read_bytes() == BODY


def test_nothing_is_written_beyond_the_known_size(
    server: MirrorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    class Counted(downloading._Transfer):
        def write(self, piece: bytes) -> None:
            super().write(piece)
            written.append(len(piece))

    monkeypatch.setattr(downloading, "_Transfer", Counted)
    with pytest.raises(DownloadFailed):
        fetch(tmp_path, server.serve("/bad", dripping_body(bytes(1 << 16), 0.0)))
    assert len(BODY) < sum(written) <= MOST
    assert (tmp_path / "file").stat().st_size == sum(written)


def test_the_error_lists_what_each_mirror_did(server: MirrorServer, tmp_path: Path) -> None:
    with MirrorServer() as gone:
        closed = gone.base
    addresses = [f"{closed}/file", server.serve("/a", status(403)), server.serve("/b", good(OTHER))]
    with pytest.raises(DownloadFailed) as failure:
        fetch(tmp_path, *addresses)
    first, *lines = str(failure.value).splitlines()
    assert first == "no mirror delivered file:"
    assert [line.split(": ")[0].strip() for line in lines] == addresses
    assert lines[0].endswith("failed after 0 bytes ([Errno 111] Connection refused)")
    assert "403 Forbidden" in lines[1]
    assert "are not the file" in lines[2]


GOOD: dict[str, Answer] = {
    "with its length": good(BODY),
    "in chunks": chunked(BODY),
    "until it hangs up": raw(b"HTTP/1.0 200 OK\r\n\r\n" + BODY),
    "compressed on the way": announcing(len(gzip.compress(BODY)), gzip.compress(BODY), Content_Encoding="gzip"),
}


@pytest.mark.parametrize("how", GOOD)
def test_a_file_may_be_sent_in_any_way_of_http(server: MirrorServer, tmp_path: Path, how: str) -> None:
    there = server.serve("/there", GOOD[how])
    address = server.serve("/moved", redirecting(b"/there"))
    assert fetch(tmp_path, address) == Delivery(address, ())
    assert fetch(tmp_path, there).failures == ()
    assert (tmp_path / "file").read_bytes() == BODY


def test_progress_goes_up_to_the_whole(server: MirrorServer, tmp_path: Path) -> None:
    steps: list[Step] = []
    fetch(tmp_path, server.serve("/file", good(BODY)), progress=steps.append)
    assert {step.text for step in steps} == {"file from 127.0.0.1"}
    assert {step.total for step in steps} == {len(BODY)}
    done = [step.done for step in steps]
    assert done == sorted(done)
    assert done[-1] == len(BODY)


def test_progress_ends_at_the_size_of_a_file_that_is_packed_otherwise(server: MirrorServer, tmp_path: Path) -> None:
    steps: list[Step] = []
    fetch(tmp_path, server.serve("/file", good(BODY + b"1")), check=lambda path: None, progress=steps.append)
    assert steps[-1] == Step("file from 127.0.0.1", len(BODY) + 1, len(BODY) + 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_is_named_and_not_blamed_on_the_mirror(server: MirrorServer) -> None:
    addresses = [server.serve("/file", good(BODY)), server.serve("/second", good(BODY))]
    with pytest.raises(OSError, match="No space left on device") as failure:
        download(addresses, Path("/dev/full"), len(BODY), check)
    assert not isinstance(failure.value, DownloadFailed)
    assert failure.value.filename == "/dev/full"
    assert server.requests == ["/file"]


def test_a_transfer_that_was_given_up_ends(server: MirrorServer, tmp_path: Path) -> None:
    begun: list[downloading._Transfer] = []

    class Interrupt(Exception):
        pass

    def interrupt(step: Step) -> None:
        begun.extend(t for t in downloading.threading.enumerate() if isinstance(t, downloading._Transfer))
        raise Interrupt

    with pytest.raises(Interrupt):
        fetch(tmp_path, server.serve("/bad", dripping_body(bytes(1 << 13), 0.05)), progress=interrupt)
    (transfer,) = begun
    transfer.join(5)
    assert not transfer.is_alive()
