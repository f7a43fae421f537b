"""What tests of README and notebook share."""

from pathlib import Path

import pytest

from support.pretrained import take_as_they_are
from support.tiny_llama import write_llama


@pytest.fixture
def made_stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made weights in place of those of stories15M. They are far from all texts, so they move at a rate of 1e-2."""
    write_llama(tmp_path)
    take_as_they_are(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
