"""Settings that all tests share."""

import sys

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, database=None, derandomize=True)
settings.load_profile("repeatable")
torch.set_num_threads(1)  # tests run side by side, and their tensors are small


@pytest.fixture
def type_in(tmp_path, monkeypatch, capsys):
    """Type in a command, and read what it prints; its runs lie in ``tmp_path``."""
    from bitfreeze.cli import main

    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path))

    def command(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["bitfreeze", *words])
        main()
        return capsys.readouterr().out

    return command
