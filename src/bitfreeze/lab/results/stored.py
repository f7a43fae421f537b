"""Runs on disk: how they are found, and what they hold. Nothing here writes."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from ..runs.config import in_words
from ..runs.errors import RunDamaged
from ..runs.events import Event, Finished, Started, TaskDone, result_of
from ..runs.folder import RunFolder
from .bit_history import BitHistory


def warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=3)


@dataclass(frozen=True)
class StoredRun:
    """One run, finished or not."""

    folder: RunFolder
    config: dict[str, Any]

    @property
    def stream(self) -> str:
        return str(self.config["stream"])

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def label(self) -> str:
        """Method, variant and changes: runs that differ only in their seed share a label."""
        return f"{self.method} {variant_of(self.config)}".rstrip()

    @property
    def title(self) -> str:
        return f"{self.stream} {self.label} seed {self.config['seed']}"

    @cached_property
    def events(self) -> list[Event]:
        return self.folder.events()

    @cached_property
    def tasks(self) -> list[str]:
        """The names of the tasks; none before the run has begun."""
        return next((event.tasks for event in self.events if isinstance(event, Started)), [])

    @cached_property
    def matrix(self) -> list[list[float]]:
        return self.folder.read_matrix()

    @cached_property
    def learned(self) -> list[TaskDone]:
        """The events of the tasks that the run has learned."""
        return [event for event in self.events if isinstance(event, TaskDone)]

    @property
    def last_task(self) -> TaskDone | None:
        return self.learned[-1] if self.learned else None

    @property
    def result(self) -> Finished | None:
        """The last event of a finished run."""
        return result_of(self.events)

    @cached_property
    def bits(self) -> BitHistory | None:
        """The frozen bits after each task; None where they were not kept, or cannot be read, which is warned of."""
        there = (self.folder.path / "bits").glob("task*.safetensors")
        files = sorted((f for f in there if f.stem[4:].isdecimal()), key=lambda f: int(f.stem[4:]))
        if not files:
            return None
        try:
            self.folder.require_kept(files)
            history = BitHistory(files, self.config["method_options"])
            history.require_readable()
        except (KeyError, OSError, ValueError) as error:
            warnings.warn(f"{error}; its bits are left out", stacklevel=2)
            return None
        return history


def find_runs(
    root: Path, places: list[str], only: str = "", without: str = "", say: Callable[[str], None] = warn
) -> list[StoredRun]:
    """All runs below these places, each a folder or a name below ``root`` (a stream, a method's folder, a run).

    ``only`` and ``without`` look at the words of variant and changes, as `bitfreeze table` does. A run that cannot be
    read is left out, and ``say`` is called with a sentence that names it.
    """
    files = {file.resolve(): file for place in places or [""] for file in _configs(root, place)}
    runs = [run for run in (read_or_say(file.parent, say) for file in sorted(files)) if run is not None]
    kept = [run for run in runs if is_wanted(variant_of(run.config), only, without)]
    if not kept:
        where = ", ".join(places) or str(root)
        raise ValueError(f"there is no run in {where} to look at: bitfreeze run digits5 makes one in seconds")
    return kept


def find_run(root: Path, place: str) -> StoredRun:
    """The run of this folder, or of this name below ``root``."""
    folder = next((p for p in (Path(place), root / place) if (p / "config.toml").exists()), None)
    if folder is None:
        raise ValueError(f"there is no run {place!r}, neither as a folder nor below {root}")
    return _whole_run(RunFolder(folder))


def _configs(root: Path, place: str) -> list[Path]:
    for folder in (root / place, Path(place)) if place else (root,):
        found = list(folder.rglob("config.toml"))
        if found:
            return found
    if place:
        raise ValueError(f"there is no run in {place!r}, neither as a folder nor below {root}")
    return []


def read_runs(files: Iterable[Path]) -> list[StoredRun]:
    """The runs of these config.toml. A run that cannot be read is named and left out."""
    found = []
    for file in files:
        run = read_or_say(file.parent, warn)
        found += [] if run is None else [run]
    return found


def read_or_say(place: Path, say: Callable[[str], None]) -> StoredRun | None:
    """The run of this folder, all of it read; None, with a warning, for a run that is damaged or was just deleted."""
    try:
        return _whole_run(RunFolder(place))
    except (OSError, RunDamaged) as error:
        say(f"{error}; it is left out")
    return None


def _whole_run(folder: RunFolder) -> StoredRun:
    run = StoredRun(folder, folder.read_config())
    folder.require_own_config()
    for event in run.events:
        if isinstance(event, TaskDone) and not all(map(isfinite, event.row)):
            raise RunDamaged(f"{folder.path / 'events.jsonl'} tells of task {event.task + 1} what is no number")
    run.matrix  # noqa: B018 - read now, so that a damaged one is named
    return run


def variant_of(config: Mapping[str, Any]) -> str:
    """The variant and the changes in words; empty for the preset's own settings."""
    return in_words(config["variant"], config["changes"])


def is_wanted(variant: str, only: str, without: str) -> bool:
    """Whether a variant has the word ``only`` and lacks the word ``without``; `preset` stands for one without words."""
    words = variant.split() or ["preset"]
    return (not only or only in words) and without not in words
