"""Getting a dataset in several processes or threads at once: one gets it, the others wait."""

import errno
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from bitfreeze.lab import data
from bitfreeze.lab.data import Step
from bitfreeze.lab.data.mnist import FILES
from support.checkout import ROOT
from support.mirror_server import MirrorServer, good, stalling
from support.tiny_dataset import NAME, assert_tiny, mirror, tiny_dataset, tiny_files

SCRIPT = """
    import sys
    from bitfreeze.lab import data
    from support.tiny_dataset import NAME, tiny_dataset

    data.register(tiny_dataset((sys.argv[1],)))
    data.get(NAME, sys.argv[2])
"""


def test_a_second_process_waits_until_the_first_is_killed(server: MirrorServer, tmp_path: Path, register) -> None:
    address, path = mirror(server), f"/mirror/{FILES[0]}"
    body = tiny_files()[FILES[0]]
    server.serve(path, stalling(body, 20_000))
    register(tiny_dataset((address,)))
    part = tmp_path / NAME / ".arriving" / FILES[0]
    left_behind: list[int] = []

    def kill_first(step: Step) -> None:
        if process.poll() is None:
            assert step.text == "tiny: waiting for another process that is getting it"
            process.kill()
            process.wait()
            left_behind.append(part.stat().st_size)
            server.serve(path, good(body))

    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), address, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT / "tests") as process:
        try:
            while process.poll() is None and not (part.exists() and part.stat().st_size):
                time.sleep(0.01)
            data.get(NAME, tmp_path, kill_first)
        finally:
            process.kill()
    assert 0 < left_behind[0] <= 20_000
    assert server.requests.count(path) == 2
    assert_tiny(tmp_path)


def test_a_file_system_without_locks_is_named(tmp_path: Path, register, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    register(tiny_dataset())
    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", without)
    with pytest.raises(OSError, match=f"{tmp_path} is on a file system without file locks: set BITFREEZE_DATA"):
        data.get(NAME, tmp_path)


def test_of_many_at_once_one_gets_it(server: MirrorServer, tmp_path: Path, register) -> None:
    register(tiny_dataset((mirror(server),)))
    threads = [threading.Thread(target=data.get, args=(NAME, tmp_path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == len(FILES)
    assert_tiny(tmp_path)
