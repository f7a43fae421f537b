"""Runs that are on disk, for looking at: finding them, and what they hold. Nothing here writes."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .bit_history import BitHistory
from .config import in_words
from .store import Event, RunDamaged, RunFolder


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
        """What runs that differ only in their seed have in common."""
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
        return list(next((event.get("tasks", []) for event in self.events if event["event"] == "started"), []))

    @cached_property
    def matrix(self) -> list[list[float]]:
        return self.folder.read_matrix()

    @property
    def learned(self) -> int:
        """How many tasks it has learned."""
        return sum(event["event"] == "task" for event in self.events)

    @property
    def last_task(self) -> Event:
        """What was noted of the last task it has learned; empty before."""
        return next((event for event in reversed(self.events) if event["event"] == "task"), {})

    @property
    def result(self) -> Event | None:
        return self.events[-1] if self.events and self.events[-1]["event"] == "finished" else None

    @cached_property
    def bits(self) -> BitHistory | None:
        """What was kept of its frozen bits; None where nothing was, or it cannot be read, which is said."""
        files = sorted((self.folder.path / "bits").glob("task*.safetensors"), key=lambda f: int(f.stem[4:]))
        if not files:
            return None
        history = BitHistory(files, self.config["method_options"])
        try:
            history.require_readable()
        except ValueError as error:
            warnings.warn(f"{error}; its bits are left out", stacklevel=2)
            return None
        return history


def find_runs(root: Path, places: list[str], only: str = "", without: str = "") -> list[StoredRun]:
    """All runs below these places, each a folder or a name below ``root`` (a stream, a method's folder, a run).

    ``only`` and ``without`` look at the words of variant and changes, as `bitfreeze table` does.
    """
    files = {file.resolve(): file for place in places or [""] for file in _configs(root, place)}
    runs = read_runs(sorted(files))
    kept = [run for run in runs if is_wanted(variant_of(run.config), only, without)]
    if not kept:
        where = ", ".join(places) or str(root)
        raise ValueError(f"there is no run in {where} to look at: bitfreeze run digits5 makes one in seconds")
    return kept


def _configs(root: Path, place: str) -> list[Path]:
    for folder in (root / place, Path(place)) if place else (root,):
        found = list(folder.rglob("config.toml"))
        if found:
            return found
    if place:
        raise ValueError(f"there is no run in {place!r}, neither as a folder nor below {root}")
    return []


def read_runs(files: Iterable[Path]) -> list[StoredRun]:
    """The runs of these config.toml. One that cannot be read is named and left out."""
    found = []
    for file in files:
        folder = RunFolder(file.parent)
        try:
            found.append(StoredRun(folder, folder.read_config()))
        except RunDamaged as error:
            warnings.warn(f"{error}; it is left out", stacklevel=3)
    return found


def variant_of(config: Mapping[str, Any]) -> str:
    """The variant and the changes in words; empty for the preset's own settings."""
    return in_words(config["variant"], config["changes"])


def is_wanted(variant: str, only: str, without: str) -> bool:
    """Whether a variant has the word ``only`` and lacks the word ``without``; `preset` stands for one without words."""
    words = variant.split() or ["preset"]
    return (not only or only in words) and without not in words


def common_changes(config: Mapping[str, Any]) -> list[str]:
    """What was changed of training, network and stream, and so is the same for methods that are compared."""
    return [change for change in config["changes"] if not change.startswith("method.")]
