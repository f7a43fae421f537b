"""One at a time: the lock is given up however its holder ends, and its absence is said clearly."""

import errno
import threading
from pathlib import Path

import pytest

from bitfreeze import file_lock
from bitfreeze.data.lock import locked


def nobody_waits() -> None:
    raise AssertionError("the lock should be free")


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with locked(tmp_path / "lock", waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(tmp_path / "lock", nobody_waits):
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_an_error_gives_it_up(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "lock", nobody_waits):
        raise KeyboardInterrupt
    with locked(tmp_path / "lock", nobody_waits):
        pass


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(number: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock, "_lock", without)
    with pytest.raises(OSError, match=f"{tmp_path} is on a file system without file locks .*: set BITFREEZE_DATA"):
        locked(tmp_path / "lock", nobody_waits).__enter__()
