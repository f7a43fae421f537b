"""Small runs for the attacks: their settings, how a process of its own does them, and what must not change."""

import json
import os
import random
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from bitfreeze.lab.methods import methods
from bitfreeze.lab.results.rows import rows_of
from bitfreeze.lab.results.stored import find_run
from bitfreeze.lab.runs.checkpoint import load_checkpoint
from bitfreeze.lab.runs.config import Config, make_config
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.start import run

GAMES = [
    'stream.envs=["CartPole-v1","Acrobot-v1?permute=1"]', "training.steps=128", "training.copies=4",
    "training.rollout=16", "training.restart=2", "training.evaluations=1", "training.games=2",
    "training.final_games=2", "training.states=50", "training.game_steps=20", "training.epochs=1",
    "training.minibatches=2", "network.hidden=[8,8]",
]  # fmt: skip
KILLED, FAILED = 137, 3


def small(method: str, stream: str = "digits5") -> Config:
    if stream == "control":
        return make_config("control", method, changes=GAMES)
    own = methods[method].record.own_networks
    return make_config("digits5", method, changes=["training.epochs=2", *([] if own else ["network.hidden=[8]"])])


def every_small() -> list[Config]:
    playing = [name for name in methods if "reinforcement" in methods[name].record.trainers]
    return [*(small(name) for name in methods), *(small(name, "control") for name in playing)]


def do(config: Config, root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(config, root, checkpoint_seconds=0)


def in_child(act: Callable[[], None], said: Path) -> int:
    """Carry something out in a forked process, which ends without any cleaning up; returns how it has ended."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            with said.open("w") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
                sys.stdout = sys.stderr = out
                try:
                    act()
                except BaseException:
                    traceback.print_exc()
                    code = FAILED
                out.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def results(config: Config, root: Path) -> dict[str, object]:
    """What must be the same however a run came to its end. Times differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (row,) = rows_of([find_run(root, config.name)])  # alone: some columns depend on other runs
        checkpoint = load_checkpoint(root / config.name / "checkpoint")
    assert checkpoint is not None
    folder = RunFolder(root / config.name)
    own = ("link", "n", "config")
    told = [
        {k: v for k, v in event.to_json().items() if k not in own and "seconds" not in k} for event in folder.events()
    ]
    kept = sorted(path for path in folder.path.glob("*/task*.safetensors"))
    return {
        "matrix": folder.read_matrix(),
        "row": {k: v for k, v in row.items() if "seconds" not in k and k not in ("environment",)},
        "weights": {k: v.numpy().tobytes() for k, v in checkpoint.state["net"].items()},
        "events": [json.dumps(e) for e in told if e["event"] not in ("started", "continued")],
        "kept": {path.name: path.read_bytes() for path in kept},
    }


class Truths:
    """What each small run ends with if nothing happens to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.known = folder / "truth", dict[str, dict[str, object]]()

    def of(self, config: Config) -> dict[str, object]:
        if config.command not in self.known:
            do(config, self.folder)
            self.known[config.command] = results(config, self.folder)
        return self.known[config.command]

    def copy(self, config: Config, to: Path) -> Path:
        """A copy of the finished run below another root."""
        self.of(config)
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.folder / config.name, to / config.name)
        return to / config.name


class FileOperations:
    """Calls ``at`` with the number of each operation that changes files below a folder, before it happens.

    Python tells of opens, renames and removals itself; fsync is wrapped. It cannot be taken back, so use it in a child.
    """

    CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")

    def __init__(self, below: Path, at: Callable[[int, str, tuple[object, ...]], None]) -> None:
        self.below, self.at, self.count, self.busy = str(below), at, 0, False
        sys.addaudithook(self._look)
        self.sync = os.fsync
        os.fsync = self._fsync  # type: ignore[assignment]

    def _look(self, event: str, args: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(args[1], str) and any(letter in args[1] for letter in "wa+x")
        if (writes or event in self.CHANGES) and self.below in str(args[0]):
            self._count(event, args)

    def _fsync(self, handle: int) -> None:
        self._count("fsync", (handle,))
        self.sync(handle)
        self.at(-1, "synced", (handle,))

    def _count(self, event: str, args: tuple[object, ...]) -> None:
        if not self.busy:
            self.busy = True
            self.count += 1
            self.at(self.count, event, args)
            self.busy = False


def operations_of(config: Config, root: Path, said: Path) -> int:
    """How many file operations a run makes."""
    note = said.with_suffix(".count")

    def act() -> None:
        seen = FileOperations(root, lambda *_: None)
        do(config, root)
        note.write_text(str(seen.count))

    assert in_child(act, said) == 0, said.read_text()
    return int(note.read_text())


def torn(file: Path, rng: random.Random) -> None:
    """Cut the last line of a file off somewhere, as a kill in the middle of writing it would."""
    data = file.read_bytes() if file.exists() else b""
    start = data.rfind(b"\n", 0, -1) + 1
    if data:
        file.write_bytes(data[: rng.randint(start, len(data))])
