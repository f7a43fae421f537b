"""The README's code runs as it is written."""

import re
from pathlib import Path

import pytest

from bitfreeze import BLIP
from support.checkout import ROOT

README = ROOT / "README.md"


def test_code_blocks_run_in_order_and_the_old_skill_is_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    blip = names["blip"]
    assert isinstance(blip, BLIP)
    assert blip.tasks == 1
    assert 0 < blip.capacity() < 1
    printed = re.findall(r"^(.*): old skill (\d+)% right, new skill (\d+)%$", capsys.readouterr().out, re.MULTILINE)
    (_, plain_old, plain_new), (_, old, new) = [(name, int(a), int(b)) for name, a, b in printed]
    assert plain_old < 85  # the block below them says 76, 98, 98 and 99
    assert old > 95
    assert new > plain_new - 3


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 180
