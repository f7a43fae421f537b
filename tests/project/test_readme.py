"""The README's code runs as it is written."""

import re
from pathlib import Path

import pytest

from bitfreeze import BLIP
from support.checkout import ROOT

README = ROOT / "README.md"


def test_code_blocks_run_in_order_and_print_a_report(
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
    assert blip.tasks == 5
    assert 0 < blip.capacity() < 1
    assert "task 5:" in capsys.readouterr().out
