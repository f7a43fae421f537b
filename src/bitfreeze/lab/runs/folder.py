"""The folder of a run: settings, events, matrix, bits and checkpoints."""

import csv
import io
import os
import shutil
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from torch import Tensor

from ..data.extras import lab_module
from ..devices import current_device, described
from ..streams import streams
from .config import Config, in_todays_options
from .events import Event, Finished, parse_line, result_of
from .kinds import kinds
from .provenance import environment
from .values import to_toml

THEN = ", then "  # between the devices of a run that was moved
E = TypeVar("E", bound=Event)
Listener = Callable[[Event], None]


class RunRefused(RuntimeError):
    """The run cannot be started as asked; what is on disk stays as it is."""


class RunDamaged(ValueError):
    """A file of a run cannot be read."""


def runs_root(given: Path | str | None = None) -> Path:
    """The folder of all runs: the given one, else BITFREEZE_RUNS, else ./runs."""
    return Path(os.environ.get("BITFREEZE_RUNS", "runs") if given is None else given)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path, listeners: Iterable[Listener] = ()) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.listeners = tuple(listeners)
        self.events_written = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the run, so that only one process works on it. A run that is refused leaves nothing.

        The system releases the lock when the process ends, however that ends.
        """
        filelock = lab_module("filelock")
        lock = self.path / "lock"
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            held = filelock.FileLock(lock).acquire(blocking=False)
        except filelock.Timeout:
            raise RunRefused(f"another process is working on {self.path}: let it finish, or stop it") from None
        try:
            with held:
                yield
        finally:
            if list(self.path.iterdir()) == [lock]:
                shutil.rmtree(self.path)
                if not any(self.path.parent.iterdir()):
                    self.path.parent.rmdir()

    def require_same_config(self, config: Config, finished: bool) -> None:
        """Refuse to go on with a run of other settings, or with one that is not finished in another environment."""
        if not (self.path / "config.toml").exists():
            return
        old, new = in_todays_options(self.read_config(), config), _settings(config)
        # code is mended and hosts differ: a run whose last bits change is better than hours of work that are lost
        free = {"bitfreeze": "an earlier version", "cpu": "an unknown kind", "device": "cpu"}
        begun, now = ({name: kept["environment"].pop(name, free[name]) for name in free} for kept in (old, new))
        begun["device"] = _last_device(begun["device"])
        if finished:
            del old["environment"], new["environment"]
        elif begun != now:
            moved = " and ".join(f"{name} {begun[name]}, now {now[name]}" for name in free if begun[name] != now[name])
            warnings.warn(
                f"{self.path} was begun with {moved}: it goes on, but its last bits may differ from a run in one go",
                stacklevel=2,
            )
        differences = _differences(old, new)
        if differences:
            raise RunRefused(
                f"{self.path} was started with other settings ({'; '.join(differences)}): use those, or delete it"
            )

    def write_config(self, config: Config) -> None:
        """Write the settings of a new run."""
        if not (self.path / "config.toml").exists():
            write_aside(self.path / "config.toml", to_toml(_settings(config)))

    def note_device(self) -> None:
        """Note in the settings that a run has moved to another device."""
        kept, now = self.read_config(), described(current_device())
        before = kept["environment"].get("device", "cpu")
        if _last_device(before) != now:
            kept["environment"]["device"] = f"{before}{THEN}{now}"
            write_aside(self.path / "config.toml", to_toml(kept))

    def event(self, event: E) -> E:
        """Append an event; returns it with its number. Numbers go on from the checkpoint that a run continues at."""
        event = replace(event, n=self.events_written)
        with (self.path / "events.jsonl").open("ab+") as file:
            file.write(_line_end_missing(file) + event.to_line())
        self.events_written += 1
        for listener in self.listeners:
            listener(event)
        return event

    def events(self) -> list[Event]:
        """All events that count. An event voids those before it whose number is the same or greater; a line that was
        cut off is no event."""
        file = self.path / "events.jsonl"
        found: list[Event] = []
        for line in file.read_bytes().splitlines() if file.exists() else []:
            event = parse_line(line)
            if event is None:
                continue
            while found and found[-1].n >= event.n:
                found.pop()
            found.append(event)
        return found

    def write_matrix(self, matrix: list[list[float]], name: str) -> None:
        """Write ``name``.csv: a row for each task learned, a column for each task, empty before it was learned."""
        width = len(matrix[-1])
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for row in matrix:
            rows.writerow([repr(value) for value in row] + [""] * (width - len(row)))
        write_aside(self.path / f"{name}.csv", text.getvalue())

    def matrix_name(self) -> str:
        """What the matrix of this run holds, such as accuracy; empty before a task is learned."""
        return next((kind.matrix for kind in kinds.values() if (self.path / f"{kind.matrix}.csv").exists()), "")

    def read_matrix(self) -> list[list[float]]:
        """A row for each task learned; no row before the first is."""
        name = self.matrix_name()
        lines = (self.path / f"{name}.csv").read_text().splitlines() if name else []
        return [[float(cell) for cell in row if cell] for row in csv.reader(lines)]

    def write_tensors(self, name: str, task: int, tensors: dict[str, Tensor]) -> None:
        """Write what is kept of a task to ``name``/task1.safetensors and so on."""
        from safetensors.torch import save

        place = self.path / name
        place.mkdir(exist_ok=True)
        on_host = {k: v.cpu().contiguous() for k, v in tensors.items()}
        write_aside(place / f"task{task + 1}.safetensors", save(on_host))

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

    def result(self) -> Finished | None:
        """The last event of a finished run; None for a run that has not ended."""
        return result_of(self.events())


class Follower(RunFolder):
    """The folder as ranks other than the first see it: they write nothing, and rank 0 tells them what it holds."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def require_same_config(self, config: Config, finished: bool) -> None:
        pass

    def write_config(self, config: Config) -> None:
        pass

    def note_device(self) -> None:
        pass

    def event(self, event: E) -> E:
        self.events_written += 1
        return replace(event, n=self.events_written - 1)

    def write_matrix(self, matrix: list[list[float]], name: str) -> None:
        pass

    def write_tensors(self, name: str, task: int, tensors: dict[str, Tensor]) -> None:
        pass

    def result(self) -> Finished | None:
        return None


def _line_end_missing(file: BinaryIO) -> bytes:
    """A line end where the last line was cut off, else nothing."""
    if not file.tell():
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def _last_device(devices: str) -> str:
    """The device that a run was last on."""
    return devices.rpartition(THEN)[2]


def _settings(config: Config) -> dict[str, Any]:
    place = environment(config.packages, streams[config.stream].needs, config.precision)
    return tomllib.loads(to_toml({**asdict(config), "environment": place}))


def write_aside(file: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
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
