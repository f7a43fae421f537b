"""The file of a run's events. Each line is linked to the one before it, so that damage and lost lines are found.

The link of a line is a hash of the line and of the link before it. A line that was cut off by a kill, and lines that a
resumed run has made void, are no damage: the events that count are whole without them.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from .durable import write_aside
from .errors import RunDamaged, RunRefused
from .events import Event, Finished
from .parsing import from_json, values_of

E = TypeVar("E", bound=Event)
LINK_DIGITS = 16


@dataclass
class Lines:
    """The events that count, with their lines, and what is wrong with them."""

    events: list[Event] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # of each event, "" for one of an earlier version
    faults: list[str] = field(default_factory=list)


def read_lines(data: bytes) -> Lines:
    """The events of a file that count. An event voids those before it whose number is the same or greater."""
    found, numbered, unread = Lines(), list[tuple[int, bytes, dict[str, Any]]](), list[tuple[int, int, bool]]()
    *lines, tail = data.split(b"\n")
    for at, line in enumerate([*lines, tail], 1):
        values = values_of(line)
        if values is None:
            if line and (at <= len(lines) or _ends_in_rubbish(line)):
                unread.append((at, len(numbered), at == len(lines) + 1))
            continue
        while numbered and numbered[-1][2]["n"] >= values["n"]:
            numbered.pop()
        unread = [(place, after, last) for place, after, last in unread if after <= len(numbered)]
        numbered.append((at, line, values))
    before = ""
    for index, (at, line, values) in enumerate(numbered):
        link = values.get("link") or ""
        lost = next((place for place, after, _ in unread if after == index), None)
        where = f"line {at if lost is None else lost}"
        if (link or before) and values["n"] != index:
            found.faults.append(f"{where}: the event with number {index} is missing")
        elif link != (_link(values, before) if link or before else ""):
            found.faults.append(f"{where} is not what was written")
        before = link
        found.events.append(from_json(values))
        found.kept.append(line + b"\n")
        found.links.append(link)
    found.faults += [f"line {place} is no event" for place, after, _ in unread if after == len(numbered)]
    return found


def _ends_in_rubbish(line: bytes) -> bool:
    """Whether a last line without its end is more than an event: a kill would have left less than one."""
    try:
        json.JSONDecoder().raw_decode(line.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _link(values: dict[str, Any], before: str) -> str:
    text = json.dumps({key: value for key, value in values.items() if key != "link"})
    return sha256(f"{before}{text}".encode()).hexdigest()[:LINK_DIGITS]


class EventLog:
    """``events.jsonl`` of a run, as one process reads and writes it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.written = 0  # number of the next event; a resumed run sets it back
        self._lines = Lines()  # of the events before it, as far as they are known
        self._size: int | None = None  # of the file after this process has written
        self._seen: tuple[bytes, Lines] = b"", Lines()  # what was read last: a report asks a run three times

    def read(self) -> list[Event]:
        """All events that count. Raises RunDamaged where one is damaged or missing."""
        lines = self._read()
        if lines.faults:
            raise RunDamaged(
                f"{self.file} is damaged ({lines.faults[0]}): the run's command restores it from the checkpoint"
            )
        return list(lines.events)

    def _read(self) -> Lines:
        try:
            data = self.file.read_bytes()
        except FileNotFoundError:
            return Lines()
        except OSError as error:
            raise RunDamaged(f"{self.file} cannot be read ({error.strerror}): delete the run") from None
        if data != self._seen[0]:
            self._seen = data, read_lines(data)
        return self._seen[1]

    def append(self, event: E) -> E:
        """Append an event; returns it with its number and link. The end of a run is written to the disk itself."""
        if len(self._lines.links) != self.written:
            known = self._read()
            self._lines = Lines([], known.kept[: self.written], known.links[: self.written])
        before = self._lines.links[-1] if self._lines.links else ""
        event = replace(event, n=self.written, link=None)
        event = replace(event, link=_link(event.to_json(), before))
        # a folder that is being deleted may be there while its events are gone
        if not (self.file.parent.is_dir() if self._size is None else self.file.exists()):
            raise RunRefused(f"{self.file.parent} was deleted while the run went on: start it again")
        with self.file.open("ab+") as out:
            if self._size is not None and out.tell() != self._size:
                raise RunRefused(f"another process is writing to {self.file.parent}: let one of them finish")
            out.write(_line_end_missing(out) + event.to_line())
            out.flush()
            self._size = out.tell()
            if isinstance(event, Finished):
                os.fsync(out.fileno())
        self.written += 1
        self._lines.kept.append(event.to_line())
        self._lines.links.append(event.link or "")
        return event

    def saved(self) -> bytes:
        """The lines of all events so far, for a checkpoint."""
        return b"".join(self._lines.kept)

    def go_on_from(self, saved: bytes | None, count: int) -> str:
        """Go on after the ``count`` lines of a checkpoint. Returns what was wrong with the file and was done, or ''.

        A checkpoint of an earlier version has no lines: then lost events are lost.
        """
        there = self._read()
        if saved is None:
            self.written = min(count, len(there.kept))
            lost = count - self.written
            return f"{self.file} has lost {lost} of {count} events: what they told is not in tables" if lost else ""
        expected = read_lines(saved)
        self.written, self._lines = len(expected.kept), expected
        lost = sum(line not in set(there.kept) for line in expected.kept)
        if not there.faults and there.kept[: self.written] == expected.kept:
            return ""
        write_aside(self.file, saved)
        what = there.faults[0] if there.faults else f"{lost} of {self.written} events were lost"
        return f"{self.file} was damaged ({what}): it is restored from the checkpoint"


def _line_end_missing(file: Any) -> bytes:
    """A line end where the last line was cut off, else nothing."""
    if not file.tell():
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def rows_of(events: Iterable[Event]) -> list[list[float]]:
    """The matrix of accuracies or scores that the events of learned tasks tell."""
    return [row for event in events if (row := getattr(event, "row", None)) is not None]
