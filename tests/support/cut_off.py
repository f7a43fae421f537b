"""Ways to cut a run off."""

import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from bitfreeze.lab.runs.folder import RunFolder

# forked from a process that has imported all there is: importing takes longer than what they do
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["bitfreeze.lab.cli.main", "bitfreeze.lab.runs", "gymnasium"])


class Cut(Exception):
    pass


def cut_after(count: int, name: str):
    """A listener that stops the run in the middle, as an error would: after so many events of this name."""
    left = [count]

    def look(event):
        left[0] -= event.name == name
        if left[0] < 0:
            raise Cut

    return look


def hear_ctrl_c() -> None:
    """Let a process that is being started hear SIGINT, also where the tests were started to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _bitfreeze(root: str, output: str, arguments: list[str]) -> None:
    from bitfreeze.lab.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may have been started to ignore it
    os.environ["BITFREEZE_RUNS"] = root
    sys.argv = ["bitfreeze", *arguments]
    sys.stdout = sys.stderr = Path(output).open("w")  # noqa: SIM115 - until the process ends
    main()


def start(root: Path, *arguments: str) -> BaseProcess:
    """``bitfreeze`` with these arguments, its runs below ``root`` and what it prints in ``root/output``."""
    root.mkdir(exist_ok=True)
    process = _forks.Process(target=_bitfreeze, args=(str(root), str(root / "output"), list(arguments)))
    process.start()
    return process


def complete(root: Path, *arguments: str) -> None:
    process = start(root, *arguments)
    try:
        process.join()
        assert process.exitcode == 0, (root / "output").read_text()
    finally:
        process.kill()


def kill_at_random(root: Path, run: str, arguments: list[str], times: int, whole: RunFolder) -> None:
    """Start it again and again and kill it at some moment on its way; it gets half as far as the ``whole`` run."""
    folder, moments = RunFolder(root / run), random.Random(0)
    stretch = max(1, len(whole.events()) // (2 * times))
    for _ in range(times):
        wanted, deadline = len(folder.events()) + moments.randint(1, stretch), time.monotonic() + 600
        process = start(root, *arguments)
        try:
            while len(folder.events()) < wanted and process.is_alive() and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(moments.random() * 0.03)  # an event is written between two pieces of work: not there only
        finally:
            process.kill()
            process.join()
    assert folder.result() is None, "it was to be killed, and has ended"
