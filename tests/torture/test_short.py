"""The short form of every attack: nothing goes wrong without a word."""

from pathlib import Path

import pytest

from torture.all import ATTACKS

pytestmark = pytest.mark.filterwarnings("ignore")  # attacks count warnings themselves


@pytest.mark.parametrize("name", list(ATTACKS))
def test_nothing_goes_wrong_without_a_word(name: str, tmp_path: Path) -> None:
    found = ATTACKS[name].run(ATTACKS[name].short, tmp_path / "here", seed=0)
    assert not found.wrong
    assert found.counts
