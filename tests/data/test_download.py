"""The downloader against a real server that does what servers do on bad days."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mirror_server import (
    Answer,
    Handler,
    MirrorServer,
    announcing,
    chunked,
    dripping,
    good,
    mute,
    stalling,
    status,
    without_ranges,
    wrong_range,
)

from bitfreeze.data import DataCorrupt, DownloadFailed, Step
from bitfreeze.data.download import Delivery, Part, download

BODY = os.urandom(200_000)
HALF = len(BODY) // 2
OTHER = BODY[:1000] + bytes(1) + BODY[1001:]


def check(path: Path) -> None:
    if path.read_bytes() != BODY:
        raise DataCorrupt(f"{path.name} is wrong")


def fetch(folder: Path, *addresses: str, check: Callable[[Path], None] = check, **options) -> Delivery:
    return download(addresses, folder / "file", check, **options)


def assert_whole(folder: Path) -> None:
    assert (folder / "file").read_bytes() == BODY
    assert [path.name for path in folder.iterdir()] == ["file"]


def assert_nothing_in_place(folder: Path) -> None:
    assert not (folder / "file").exists()


FAULTS: dict[str, tuple[Answer, str]] = {
    "not found": (status(404), "answered 404 Not Found"),
    "server error": (status(500), "answered 500 Internal Server Error"),
    "no content": (status(204), "answered 204 where 200 was due"),
    "a range unasked": (wrong_range(BODY), "answered 206 where 200 was due"),
    "never answers": (mute, "did not answer (timed out)"),
    "stalls": (stalling(BODY, HALF), f"stalled after {HALF:,} bytes"),
    "stalls at once": (stalling(BODY, 0), "stalled after 0 bytes"),
    "drips": (dripping(BODY, 1, 0.02), "stalled after"),
    "cuts off": (without_ranges(BODY, HALF), f"broke off after {HALF:,} of {len(BODY):,} bytes"),
    "cuts off a chunk": (chunked(BODY, whole=False), f"broke off after {HALF:,} bytes"),
    "announces too much": (
        announcing(len(BODY) + 9, BODY),
        f"broke off after {len(BODY):,} of {len(BODY) + 9:,} bytes",
    ),
    "announces too little": (announcing(1000, BODY), "sent 1,000 bytes that are not the file: file.part is wrong"),
    "announces nothing": (announcing(0, b""), "sent 0 bytes that are not the file"),
    "corrupt bytes": (good(OTHER), f"sent {len(OTHER):,} bytes that are not the file: file.part is wrong"),
    "a web page": (good(b"<html>Please log in</html>"), "sent 26 bytes that are not the file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_bad_mirror_the_good_one_delivers(server: MirrorServer, tmp_path: Path, fault: str) -> None:
    answer, words = FAULTS[fault]
    in_place_between: list[bool] = []

    def look_then_send(handler: Handler) -> None:
        in_place_between.append((tmp_path / "file").exists())
        good(BODY)(handler)

    bad, fine = server.serve("/bad", answer), server.serve("/good", look_then_send)
    slow = answer is mute or "stalled" in words
    delivery = fetch(tmp_path, bad, fine, timeout=0.5 if slow else 20.0)
    assert delivery.address == fine
    assert len(delivery.failures) == 1
    assert delivery.failures[0].startswith(f"{bad}: {words}")
    assert in_place_between == [False]
    assert_whole(tmp_path)


def test_what_stood_there_before_stays_until_the_new_file_is_whole(server: MirrorServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(DownloadFailed):
        fetch(tmp_path, server.serve("/bad", good(OTHER)))
    assert (tmp_path / "file").read_bytes() == b"before"
    fetch(tmp_path, server.serve("/good", good(BODY)))
    assert_whole(tmp_path)


def test_the_error_lists_what_each_mirror_answered(server: MirrorServer, tmp_path: Path) -> None:
    with MirrorServer() as gone:
        closed = gone.base
    addresses = [f"{closed}/file", server.serve("/a", status(403)), server.serve("/b", good(OTHER))]
    with pytest.raises(DownloadFailed) as failure:
        fetch(tmp_path, *addresses)
    first, *lines = str(failure.value).splitlines()
    assert first == "no mirror delivered file:"
    assert [line.split(": ")[0].strip() for line in lines] == addresses
    assert "could not be reached" in lines[0]
    assert "403 Forbidden" in lines[1]
    assert "are not the file" in lines[2]


@pytest.mark.parametrize("answer", [chunked(BODY), without_ranges(BODY)], ids=["chunked", "without ranges"])
def test_plain_servers_will_do(server: MirrorServer, tmp_path: Path, answer: Answer) -> None:
    fetch(tmp_path, server.serve("/file", answer))
    assert_whole(tmp_path)


# resuming


@pytest.mark.parametrize("version", [{"tag": '"a"'}, {"tag": None, "date": "Sat, 15 Nov 2025 00:00:00 GMT"}])
def test_a_broken_transfer_goes_on_where_it_was(server: MirrorServer, tmp_path: Path, version: dict[str, str]) -> None:
    address = server.serve("/file", good(BODY, cut=HALF, **version), good(BODY, **version))
    assert fetch(tmp_path, address).failures == ()
    assert server.ranges("/file") == [None, f"bytes={HALF}-"]
    assert server.requests[1].headers["If-Range"] in version.values()
    assert_whole(tmp_path)


def test_a_later_call_goes_on_too(server: MirrorServer, tmp_path: Path) -> None:
    address = server.serve("/file", good(BODY, cut=HALF), status(503))
    with pytest.raises(DownloadFailed):
        fetch(tmp_path, address)
    assert (tmp_path / "file.part").read_bytes() == BODY[:HALF]
    server.answers["/file"] = [good(BODY)]
    fetch(tmp_path, address)
    assert server.ranges("/file") == [None, f"bytes={HALF}-", f"bytes={HALF}-"]
    assert_whole(tmp_path)


def test_a_mirror_is_asked_again_only_while_it_brings_something(server: MirrorServer, tmp_path: Path) -> None:
    step = len(BODY) // 4
    fetch(tmp_path, server.serve("/quarters", good(BODY, cut=step)))
    assert server.ranges("/quarters") == [None, *(f"bytes={k * step}-" for k in (1, 2, 3))]
    assert_whole(tmp_path)
    with pytest.raises(DownloadFailed, match="broke off after 0 of"):
        fetch(tmp_path, server.serve("/nothing", good(BODY, cut=0)))
    assert len(server.ranges("/nothing")) == 1
    with pytest.raises(DownloadFailed, match="broke off after 5 of"):
        fetch(tmp_path, server.serve("/little", good(BODY, cut=1)))
    assert len(server.ranges("/little")) == 5


def test_a_server_that_ignores_ranges_starts_over(server: MirrorServer, tmp_path: Path) -> None:
    fetch(tmp_path, server.serve("/file", good(BODY, cut=HALF), without_ranges(BODY)))
    assert server.ranges("/file") == [None, f"bytes={HALF}-"]
    assert_whole(tmp_path)


CHANGES: dict[str, list[Answer]] = {
    "another tag": [good(OTHER[:-5], '"1"', cut=HALF), good(BODY, '"2"')],
    "no tags, another length": [good(OTHER[:-5], None, cut=HALF), good(BODY, None)],
    "another tag, If-Range ignored": [
        good(OTHER, '"1"', cut=HALF),
        wrong_range(BODY[HALF:], Content_Range=f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}", ETag='"2"'),
        good(BODY, '"2"'),
    ],
    "shorter than the part": [good(BODY + BODY, None, cut=len(BODY) + 9), good(BODY, None)],
    "another range than asked for": [good(BODY, cut=HALF), wrong_range(BODY), good(BODY)],
    "an unreadable range": [good(BODY, cut=HALF), wrong_range(BODY, Content_Range="all of it"), good(BODY)],
}


@pytest.mark.parametrize("answers", CHANGES.values(), ids=CHANGES)
def test_a_part_of_another_file_is_not_continued(server: MirrorServer, tmp_path: Path, answers: list[Answer]) -> None:
    address = server.serve("/file", *answers)
    delivery = fetch(tmp_path, address, check=lambda path: None)  # so that no check sets right what went wrong
    assert delivery.failures == ()
    assert_whole(tmp_path)


def test_a_range_that_is_longer_than_it_says_is_not_used(server: MirrorServer, tmp_path: Path) -> None:
    span = f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}"
    bad = server.serve("/bad", good(BODY, cut=HALF), wrong_range(BODY, Content_Range=span))
    delivery = fetch(tmp_path, bad, server.serve("/good", good(BODY)), check=lambda path: None)
    assert delivery.failures == (f"{bad}: sent {len(BODY) + HALF:,} bytes after announcing {len(BODY):,}",)
    assert_whole(tmp_path)


def test_a_part_that_turns_out_wrong_is_got_anew(server: MirrorServer, tmp_path: Path) -> None:
    """The server changed the file and kept tag and length: only the check can tell."""
    fetch(tmp_path, server.serve("/file", good(OTHER, cut=HALF), good(BODY)))
    assert server.ranges("/file") == [None, f"bytes={HALF}-", None]
    assert_whole(tmp_path)


def test_a_part_of_another_mirror_is_not_continued_nor_lost(server: MirrorServer, tmp_path: Path) -> None:
    half, gone = server.serve("/half", good(BODY, cut=HALF), status(503)), server.serve("/gone", status(404))
    with pytest.raises(DownloadFailed):
        fetch(tmp_path, half, gone)
    assert server.ranges("/gone") == [None]
    assert (tmp_path / "file.part").stat().st_size == HALF
    fetch(tmp_path, server.serve("/good", good(BODY)))
    assert server.ranges("/good") == [None]
    assert_whole(tmp_path)


def test_a_whole_part_needs_only_the_check(server: MirrorServer, tmp_path: Path) -> None:
    address = server.serve("/file", good(BODY))

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path, address, check=killed)
    assert_nothing_in_place(tmp_path)
    fetch(tmp_path, address)
    assert len(server.requests) == 1
    assert_whole(tmp_path)


@pytest.mark.parametrize("note", ["", "{", "[]", '{"address": 1}'])
def test_a_part_of_unknown_origin_is_not_used(server: MirrorServer, tmp_path: Path, note: str) -> None:
    (tmp_path / "file.part").write_bytes(b"whatever")
    (tmp_path / "file.part.from").write_text(note)
    fetch(tmp_path, server.serve("/file", good(BODY)))
    assert server.ranges("/file") == [None]
    assert_whole(tmp_path)


# progress, and the disk


def test_progress_goes_up_to_the_whole(server: MirrorServer, tmp_path: Path) -> None:
    steps: list[Step] = []
    fetch(tmp_path, server.serve("/file", good(BODY, cut=HALF), good(BODY)), progress=steps.append)
    assert {step.text for step in steps} == {"file from 127.0.0.1"}
    assert {step.total for step in steps} == {len(BODY)}
    done = [step.done for step in steps]
    assert done == sorted(done)
    assert done[-1] == len(BODY)


def test_a_full_disk_is_named_and_not_blamed_on_the_mirror(
    server: MirrorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as failure:
        fetch(tmp_path, server.serve("/file", good(BODY)), server.serve("/second", good(BODY)))
    assert not isinstance(failure.value, DownloadFailed)
    assert failure.value.filename == str(Part(tmp_path / "file").path)
    assert server.ranges("/second") == []
    assert_nothing_in_place(tmp_path)
