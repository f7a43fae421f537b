"""Runs that are killed at file operations, power cuts, and two hosts that work on one run."""

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

from bitfreeze.lab.runs.config import Config
from torture.attacks import WRONG, Outcomes, Setting, attack
from torture.small_runs import (  # fmt: skip
    FAILED,
    KILLED,
    FileOperations,
    Truths,
    do,
    every_small,
    in_child,
    operations_of,
    results,
    torn,
)


def compare(config: Config, root: Path, truths: Truths, said: Path, found: Outcomes, cause: str) -> None:
    """Let a run go on to its end, and compare it with one that nothing has happened to."""
    code = in_child(lambda: do(config, root), said)
    if code:
        found.note(f"{WRONG}, cannot go on", f"{cause}: {said.read_text()[-400:]}")
        return
    truth, now = truths.of(config), results(config, root)
    unlike = [key for key in truth if truth[key] != now[key]]
    found.note("same bytes" if not unlike else f"{WRONG} bytes", f"{cause}: {unlike}")


@attack("kills", short=4, long=1000)
def kill_at_operations(setting: Setting, found: Outcomes) -> None:
    """a run killed at a file operation or within a write, up to three times, over all methods and streams"""
    truths, said, rng = Truths(setting.folder), setting.folder / "said", setting.rng
    configs = every_small()
    rng.shuffle(configs)
    operations: dict[str, int] = {}
    left: dict[str, list[int]] = {}  # operations at which no first kill has been yet
    for number in setting.turns():
        config = configs[number % min(len(configs), max(2, setting.rounds // 4))]
        if config.command not in operations:
            operations[config.command] = operations_of(config, setting.folder / "counted", said)
        root, count = setting.folder / "killed", operations[config.command]
        shutil.rmtree(root, ignore_errors=True)
        left[config.command] = left.get(config.command) or rng.sample(range(1, count + 1), count)
        places = [left[config.command].pop(), *(rng.randint(1, count) for _ in range(rng.randint(0, 2)))]
        for place in places:
            in_child(lambda r=root, p=place, c=config: killed_at(c, r, p, rng), said)  # type: ignore[misc]
        compare(config, root, truths, said, found, f"{config.command} at {places}")


def killed_at(config: Config, root: Path, place: int, rng: random.Random) -> None:
    def at(number: int, event: str, args: tuple[Any, ...]) -> None:
        if number == place:
            if event == "fsync" and rng.random() < 0.7:
                os.ftruncate(args[0], rng.randint(0, os.fstat(args[0]).st_size))
            elif rng.random() < 0.5:
                torn(root / config.name / "events.jsonl", rng)
            os._exit(KILLED)

    FileOperations(root, at)
    do(config, root)


# a power cut


@attack("power-cuts", short=3, long=500)
def cut_the_power(setting: Setting, found: Outcomes) -> None:
    """a run cut off at a file operation; what was not synced is lost, cut short, zero or reordered"""
    truths, said, rng = Truths(setting.folder), setting.folder / "said", setting.rng
    configs = [config for config in every_small() if config.method in ("ft", "blip", "er", "ewc")]
    operations: dict[str, int] = {}
    for _ in setting.turns():
        config = rng.choice(configs[: max(1, setting.rounds // 3)])
        if config.command not in operations:
            operations[config.command] = operations_of(config, setting.folder / "counted", said)
        root = setting.folder / "cut"
        shutil.rmtree(root, ignore_errors=True)
        places = [rng.randint(1, operations[config.command]) for _ in range(rng.randint(1, 2))]
        for place in places:
            in_child(lambda r=root, p=place, c=config: cut_at(c, r, p, rng), said)  # type: ignore[misc]
        compare(config, root, truths, said, found, f"{config.command} at {places}")


class Disk:
    """What a disk keeps: a file's bytes as of its last sync, and a folder's names as of the folder's last sync."""

    def __init__(self) -> None:
        self.synced: dict[int, bytes] = {}  # by inode
        self.renames: list[tuple[Path, Path, bytes | None]] = []  # not yet synced: from, to, what was there

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "os.rename":
            source, target = Path(str(args[0])), Path(str(args[1]))
            self.renames.append((source, target, target.read_bytes() if target.is_file() else None))
        elif event == "synced":
            place = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
            if place.is_dir():
                self.renames = [entry for entry in self.renames if entry[1].parent != place]
            else:
                self.synced[os.fstat(args[0]).st_ino] = place.read_bytes()

    def lose(self, root: Path, rng: random.Random) -> None:
        """Leave what a disk may hold after the power is gone."""
        for source, target, before in reversed(self.renames):
            if target.exists() and rng.random() < 0.5:
                if target.is_dir() or before is None:
                    target.rename(source)
                else:
                    source.write_bytes(target.read_bytes())
                    target.write_bytes(before)
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            now, safe = file.read_bytes(), self.synced.get(file.stat().st_ino, b"")
            if now != safe:
                cut = rng.randint(min(len(safe), len(now)), len(now))
                choices = [now, safe, now[:cut], now[:cut] + bytes(len(now) - cut)]
                file.write_bytes(rng.choice(choices))


def cut_at(config: Config, root: Path, place: int, rng: random.Random) -> None:
    disk = Disk()
    for file in (path for path in root.rglob("*") if path.is_file()):
        disk.synced[file.stat().st_ino] = file.read_bytes()  # what was there when the machine was started

    def at(number: int, event: str, args: tuple[Any, ...]) -> None:
        if number == place:
            disk.lose(root, rng)
            os._exit(KILLED)
        disk.note(event, args)

    FileOperations(root, at)
    do(config, root)


@attack("two-hosts", short=1, long=50)
def two_on_one_folder(setting: Setting, found: Outcomes) -> None:
    """two processes on one run, with locks that do not hold between them, as on some shared file systems"""
    truths, rng = Truths(setting.folder), setting.rng
    configs = [config for config in every_small() if config.method in ("ft", "blip") and config.stream == "digits5"]
    for number in setting.turns():
        config, root = configs[number % len(configs)], setting.folder / "shared"
        truths.of(config)
        shutil.rmtree(root, ignore_errors=True)
        children = []
        for host, wait in enumerate((0.0, 0.3 * rng.random())):
            children.append(_start_unlocked(config, root, setting.folder / f"host{host}", wait))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        said = "".join((setting.folder / f"host{host}").read_text() for host in range(2))
        found.note("refused by name" if "another process is writing" in said else f"both ended {codes}")
        compare(config, root, truths, setting.folder / "said", found, said[-300:])


def _start_unlocked(config: Config, root: Path, said: Path, wait: float) -> int:
    child = os.fork()
    if child == 0:
        import contextlib

        from bitfreeze.lab.runs.folder import RunFolder

        RunFolder.locked = lambda self: contextlib.nullcontext(self.path.mkdir(parents=True, exist_ok=True))  # type: ignore[method-assign]
        time.sleep(wait)
        with said.open("w") as out:
            try:
                do(config, root)
            except BaseException as error:
                out.write(repr(error))
                out.flush()
                os._exit(FAILED)
        os._exit(0)
    return child
