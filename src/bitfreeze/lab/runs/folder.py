"""The folder of a run: settings, events, matrix, bits and checkpoints."""

import csv
import io
import os
import shutil
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from ..data.extras import lab_module
from ..devices import current_device, described
from ..streams import streams
from .config import Config, in_todays_options
from .durable import write_aside
from .errors import RunDamaged, RunRefused
from .event_log import EventLog, rows_of
from .events import Event, Finished, Started, TaskDone, result_of
from .kinds import kind_of, kinds
from .provenance import environment
from .values import to_toml

THEN = ", then "  # between the devices of a run that was moved
E = TypeVar("E", bound=Event)
_KINDS: dict[str, type] = {
    **dict.fromkeys(("stream", "method", "variant"), str),
    **dict.fromkeys(("training", "network", "stream_options", "method_options", "environment"), dict),
    "seed": int,
    "changes": list,
}
Listener = Callable[[Event], None]


def runs_root(given: Path | str | None = None) -> Path:
    """The folder of all runs: the given one, else BITFREEZE_RUNS, else ./runs."""
    return Path(os.environ.get("BITFREEZE_RUNS", "runs") if given is None else given)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path, listeners: Iterable[Listener] = ()) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.listeners = tuple(listeners)
        self.log = EventLog(path / "events.jsonl")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the run, so that only one process works on it. A run that is refused leaves nothing.

        The system releases the lock when the process ends, however that ends.
        """
        filelock = lab_module("filelock")
        lock = self.path / "lock"
        if lock.is_symlink():
            raise RunRefused(
                f"{lock} must be a file, got a link, which another file would be locked through: delete it"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            held = filelock.FileLock(lock).acquire(blocking=False)
        except filelock.Timeout:
            raise RunRefused(f"another process is working on {self.path}: let it finish, or stop it") from None
        try:
            with held:
                yield
        finally:
            if self.path.is_dir() and list(self.path.iterdir()) == [lock]:
                shutil.rmtree(self.path)
                with suppress(OSError):  # of the method or the stream, if other runs are there
                    self.path.parent.rmdir()
                    self.path.parent.parent.rmdir()

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

    def begin(self, started: Started) -> None:
        """Tell that a run begins or goes on. Settings note the device that it has moved to.

        The event comes first. It holds the digest of the settings, so that a kill between the two leaves settings that
        an event has told of.
        """
        file = self.path / "config.toml"
        text = file.read_text()
        kept, now = self.read_config(), described(current_device())
        before = kept["environment"].get("device", "cpu")
        if _last_device(before) != now:
            kept["environment"]["device"] = f"{before}{THEN}{now}"
            text = to_toml(kept)
        self.event(replace(started, config=sha256(text.encode()).hexdigest()))
        if text != file.read_text():
            write_aside(file, text)

    def event(self, event: E) -> E:
        """Append an event; returns it with its number. Numbers go on from the checkpoint that a run continues at."""
        event = self.log.append(event)
        for listener in self.listeners:
            listener(event)
        return event

    def events(self) -> list[Event]:
        """All events that count. Raises RunDamaged where one is damaged or missing."""
        return self.log.read()

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
        """A row for each task learned; no row before the first is. It must be the one that the events tell."""
        name, told = self.matrix_name(), rows_of(self.events())
        if not name:
            return told
        file = self.path / f"{name}.csv"
        try:
            lines = file.read_text().splitlines()
            found = [[float(cell) for cell in row if cell] for row in csv.reader(lines)]
        except (OSError, ValueError, csv.Error) as error:
            raise RunDamaged(f"{file} cannot be read ({error}): the run's command writes it again") from None
        # a run that was just killed may have written a row whose event it has not, or is being written
        if repr(found[: len(told)]) != repr(told[: len(found)]) or len(found) < len(told) - 1:
            raise RunDamaged(f"{file} is not what events.jsonl tells: the run's command writes it again")
        return found

    def write_tensors(self, name: str, task: int, tensors: dict[str, Tensor]) -> dict[str, str]:
        """Write what is kept of a task to ``name``/task1.safetensors and so on; returns its SHA-256 by its path."""
        from safetensors.torch import save

        place = self.path / name
        place.mkdir(exist_ok=True)
        data = save({k: v.cpu().contiguous() for k, v in tensors.items()})
        write_aside(place / f"task{task + 1}.safetensors", data)
        return {f"{name}/task{task + 1}.safetensors": sha256(data).hexdigest()}

    def read_tensors(self, name: str, task: int) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        file = self.path / name / f"task{task + 1}.safetensors"
        if not file.exists():
            raise ValueError(f"{file} is not there: the run has not learned {task + 1} tasks yet")
        self.require_kept([file])
        try:
            return load(file.read_bytes())
        except SafetensorError as error:
            raise RunDamaged(f"{file} cannot be read ({error}): delete the run and do it again") from None

    def require_kept(self, files: Iterable[Path]) -> None:
        """Refuse files of tasks that are not what the run wrote. Runs of earlier versions do not tell."""
        told = [event.files for event in self.events() if isinstance(event, TaskDone) and event.files]
        expected = {path: digest for table in told for path, digest in table.items()}
        for file in files:
            digest = expected.get(file.relative_to(self.path).as_posix())
            if digest is not None and sha256(file.read_bytes()).hexdigest() != digest:
                raise RunDamaged(f"{file} cannot be read (it is not what was written): delete the run and do it again")

    def read_config(self) -> dict[str, Any]:
        file = self.path / "config.toml"
        try:
            config = {"variant": "", "changes": [], "method_options": {}, **tomllib.loads(file.read_text())}
        except (OSError, ValueError) as error:
            raise RunDamaged(f"{file} cannot be read ({error}): mend it, or delete the run") from None
        missing = [name for name in ("stream", "method", "seed", "training", "environment") if name not in config]
        if missing:
            raise RunDamaged(f"{file} does not say {' and '.join(missing)}: mend it, or delete the run")
        wrong = [name for name, kind in _KINDS.items() if name in config and type(config[name]) is not kind]
        wrong += ["changes"] * (not wrong and not all(isinstance(change, str) for change in config["changes"]))
        if wrong or config["seed"] < 0:
            name = wrong[0] if wrong else "seed"
            raise RunDamaged(f"{file} says {name} = {config[name]!r}, which cannot be: mend it, or delete the run")
        return config

    def result(self) -> Finished | None:
        """The last event of a finished run; None for a run that has not ended."""
        return result_of(self.events())

    def result_or_word(self) -> Finished | None:
        """The same; None, with a warning, where events are damaged. Such a run goes on from its checkpoint."""
        try:
            return self.result()
        except RunDamaged as error:
            warnings.warn(str(error), stacklevel=3)
            return None

    def write_lost_files(self, config: Config) -> None:
        """Write settings and matrix of a finished run again, if they were lost or damaged since."""
        self.write_config(config)
        try:
            self.read_matrix()
        except RunDamaged as error:
            warnings.warn(str(error), stacklevel=3)
            self.write_matrix(rows_of(self.events()), kind_of(config.stream).matrix)

    def require_own_config(self) -> None:
        """Refuse settings that are not those that the run began with. Runs of earlier versions do not tell."""
        told = {event.config for event in self.events() if isinstance(event, Started) and event.config}
        if told and sha256((self.path / "config.toml").read_bytes()).hexdigest() not in told:
            raise RunDamaged(f"{self.path / 'config.toml'} is not what the run wrote: mend it, or delete the run")


class Follower(RunFolder):
    """The folder as ranks other than the first see it: they write nothing, and rank 0 tells them what it holds."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def require_same_config(self, config: Config, finished: bool) -> None:
        pass

    def write_config(self, config: Config) -> None:
        pass

    def begin(self, started: Started) -> None:
        self.event(started)

    def write_lost_files(self, config: Config) -> None:
        pass

    def event(self, event: E) -> E:
        self.log.written += 1
        return replace(event, n=self.log.written - 1)

    def write_matrix(self, matrix: list[list[float]], name: str) -> None:
        pass

    def write_tensors(self, name: str, task: int, tensors: dict[str, Tensor]) -> dict[str, str]:
        return {}

    def result(self) -> Finished | None:
        return None


def _last_device(devices: str) -> str:
    """The device that a run was last on."""
    return devices.rpartition(THEN)[2]


def _settings(config: Config) -> dict[str, Any]:
    place = environment(config.packages, streams[config.stream].needs, config.precision)
    return tomllib.loads(to_toml({**asdict(config), "environment": place}))


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key} is {a!r} there and {b!r} here")
    return found
