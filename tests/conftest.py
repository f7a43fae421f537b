"""Settings that all tests share."""

import subprocess
import sys

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

from bitfreeze.lab.data import datasets
from support.checkout import ROOT

PREPARE = ROOT.parent / "shared" / "data" / "prepare.py"

settings.register_profile("repeatable", deadline=None, database=None, derandomize=True)
settings.load_profile("repeatable")
torch.set_num_threads(1)  # tests run side by side, and their tensors are small


@pytest.fixture
def type_in(tmp_path, monkeypatch, capsys):
    """Type in a command, and read what it prints; its runs lie in ``tmp_path``."""
    from bitfreeze.lab.cli.main import main

    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path))

    def command(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["bitfreeze", *words])
        main()
        return capsys.readouterr().out

    return command


@pytest.fixture
def real_data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The real files of these datasets: those of the data root, or else of ../shared, laid out once for all tests."""
    names: tuple[str, ...] = request.param
    absent = [d.name for d in datasets.values() if d.name in names and any(not f.find(d.folder()) for f in d.files)]
    if not absent:
        return names
    if not PREPARE.exists():
        pytest.skip(f"the data root has no {', '.join(absent)}: run `bitfreeze data get`, or set BITFREEZE_DATA")
    root = request.config.cache.mkdir("data")
    with FileLock(root / "lock"):
        done = subprocess.run([sys.executable, PREPARE, root, *names], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"../shared could not be laid out: {done.stderr.strip().splitlines()[-1]}")
    monkeypatch.setenv("BITFREEZE_DATA", str(root))
    return names
