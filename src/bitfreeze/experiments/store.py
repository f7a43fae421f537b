"""A run on disk: its settings, events, accuracies, bits and checkpoints, below one folder."""

import csv
import io
import json
import os
import shutil
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from ..file_lock import try_to_lock
from ..streams import streams
from .config import Config
from .environment import environment
from .values import to_toml

Event = dict[str, Any]
Listener = Callable[[Event], None]


class RunRefused(RuntimeError):
    """The run cannot be started as asked; what is on disk stays as it is."""


class RunDamaged(ValueError):
    """A file of a run cannot be read."""


def runs_root() -> Path:
    """BITFREEZE_RUNS, else ./runs."""
    return Path(os.environ.get("BITFREEZE_RUNS", "runs"))


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path, listeners: Iterable[Listener] = ()) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.listeners = tuple(listeners)
        self.events_written = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time works on a run. Of one that is refused nothing is left, not even this lock."""
        lock = self.path / "lock"
        self.path.mkdir(parents=True, exist_ok=True)
        held = False
        try:
            with lock.open("w") as file:
                held = try_to_lock(file)
                if not held:
                    raise RunRefused(f"another process is working on {self.path}: let it finish, or stop it")
                yield
        finally:
            if held and list(self.path.iterdir()) == [lock]:
                shutil.rmtree(self.path)
                if not any(self.path.parent.iterdir()):
                    self.path.parent.rmdir()

    def require_same_config(self, config: Config, finished: bool) -> None:
        """A run that is there must have the same settings, and to go on with it the same environment too."""
        if not (self.path / "config.toml").exists():
            return
        old, new = self.read_config(), _settings(config)
        # code is mended, and hosts differ: better last bits of another kind than hours of work that cannot go on
        free = {"bitfreeze": "an earlier version", "cpu": "an unknown kind"}
        begun, now = ({name: kept["environment"].pop(name, free[name]) for name in free} for kept in (old, new))
        if finished:
            del old["environment"], new["environment"]
        elif begun != now:
            moved = " and ".join(f"{name} {begun[name]}, now {now[name]}" for name in free if begun[name] != now[name])
            warnings.warn(
                f"{self.path} was begun with {moved}: it goes on, but will not end with the same bytes as in one go",
                stacklevel=2,
            )
        differences = _differences(old, new)
        if differences:
            raise RunRefused(
                f"{self.path} was started with other settings ({'; '.join(differences)}): use those, or delete it"
            )

    def write_config(self, config: Config) -> None:
        """The settings of a new run."""
        if not (self.path / "config.toml").exists():
            write_aside(self.path / "config.toml", to_toml(_settings(config)))

    def event(self, kind: str, **values: Any) -> Event:
        """Append an event. Numbers go on from the checkpoint that a run continues at, which makes later ones void."""
        event = {"n": self.events_written, "event": kind, **values}
        with (self.path / "events.jsonl").open("ab+") as file:
            file.write(_line_end_missing(file) + json.dumps(event).encode() + b"\n")
        self.events_written += 1
        for listener in self.listeners:
            listener(event)
        return event

    def events(self) -> list[Event]:
        """All events that count: one with the number n makes those with n and more void that came before it. A line
        that was cut off or damaged is none."""
        file = self.path / "events.jsonl"
        found: list[Event] = []
        for line in file.read_bytes().splitlines() if file.exists() else []:
            event = _parsed(line)
            if event is None:
                continue
            while found and found[-1]["n"] >= event["n"]:
                found.pop()
            found.append(event)
        return found

    def write_matrix(self, matrix: list[list[float]], figures: str) -> None:
        """accuracy.csv or score.csv: a row for each task learned, a column for each task tested, empty before it."""
        width = len(matrix[-1])
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for row in matrix:
            rows.writerow([repr(value) for value in row] + [""] * (width - len(row)))
        write_aside(self.path / f"{figures}.csv", text.getvalue())

    def read_matrix(self, figures: str = "accuracy") -> list[list[float]]:
        file = self.path / f"{figures}.csv"
        if not file.exists():
            return []
        return [[float(cell) for cell in row if cell] for row in csv.reader(file.read_text().splitlines())]

    def write_tensors(self, name: str, task: int, tensors: dict[str, Tensor]) -> None:
        """bits/task1.safetensors and so on: what is kept of each task, to be looked at."""
        from safetensors.torch import save

        place = self.path / name
        place.mkdir(exist_ok=True)
        write_aside(place / f"task{task + 1}.safetensors", save({k: v.contiguous() for k, v in tensors.items()}))

    def read_tensors(self, name: str, task: int) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        file = self.path / name / f"task{task + 1}.safetensors"
        if not file.exists():
            raise ValueError(f"{file} is not there: the run has not learned {task + 1} tasks yet")
        try:
            return load(file.read_bytes())
        except SafetensorError as error:
            raise RunDamaged(f"{file} cannot be read ({error}): delete the run and do it again") from None

    def read_config(self) -> dict[str, Any]:
        file = self.path / "config.toml"
        try:
            config = {"variant": "", "changes": [], "method_options": {}, **tomllib.loads(file.read_text())}
        except (OSError, ValueError) as error:
            raise RunDamaged(f"{file} cannot be read ({error}): mend it, or delete the run") from None
        missing = [name for name in ("stream", "method", "seed", "training", "environment") if name not in config]
        if missing:
            raise RunDamaged(f"{file} does not say {' and '.join(missing)}: mend it, or delete the run")
        return config

    def last(self, kind: str) -> Event:
        """The last event of a kind; empty if there is none."""
        return next((event for event in reversed(self.events()) if event["event"] == kind), {})

    def result(self) -> Event | None:
        """The last event of a finished run."""
        events = self.events()
        return events[-1] if events and events[-1]["event"] == "finished" else None


class Follower(RunFolder):
    """The run's folder as ranks other than the first see it: they write nothing, and are told what is there."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def require_same_config(self, config: Config, finished: bool) -> None:
        pass

    def write_config(self, config: Config) -> None:
        pass

    def event(self, kind: str, **values: Any) -> Event:
        self.events_written += 1
        return {"n": self.events_written - 1, "event": kind, **values}

    def write_matrix(self, matrix: list[list[float]], figures: str) -> None:
        pass

    def write_tensors(self, name: str, task: int, tensors: dict[str, Tensor]) -> None:
        pass

    def result(self) -> Event | None:
        return None


def _line_end_missing(file: BinaryIO) -> bytes:
    """What a last line that was cut off lacks."""
    if not file.tell():
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def _parsed(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("n"), int) and "event" in event else None


def _settings(config: Config) -> dict[str, Any]:
    place = environment(config.packages, streams[config.stream].needs)
    return tomllib.loads(to_toml({**asdict(config), "environment": place}))


def write_aside(file: Path, content: str | bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    aside = file.with_name(f".{file.name}.part")
    aside.write_bytes(content.encode() if isinstance(content, str) else content)
    aside.replace(file)


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key} is {a!r} there and {b!r} here")
    return found
