"""Where datasets are kept."""

import sys
from pathlib import Path

import pytest

from bitfreeze.lab.data import data_root


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path / "here"))
    assert data_root() == tmp_path / "here"
    monkeypatch.setenv("BITFREEZE_DATA", "~/there")
    assert data_root() == Path.home() / "there"


@pytest.mark.parametrize("variable", [None, ""])
@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/cache"}, "/cache/bitfreeze/data"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/.cache/bitfreeze/data"),
        ("linux", {}, "/home/.cache/bitfreeze/data"),
        ("darwin", {"XDG_CACHE_HOME": "/cache"}, "/home/Library/Caches/bitfreeze/data"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/bitfreeze/data"),
        ("win32", {}, "/home/AppData/Local/bitfreeze/data"),
    ],
)
def test_else_the_cache_folder_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], expected: str, variable: str | None
) -> None:
    for name in ("BITFREEZE_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv("BITFREEZE_DATA", variable)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path("/home"))
    monkeypatch.setattr(sys, "platform", platform)
    assert data_root() == Path(expected)
