"""What the examples promise: fine-tuning forgets, BLIP does so much less."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_own_loop_forgets_less_with_blip() -> None:
    example = runpy.run_path(str(EXAMPLES / "own_loop.py"))
    plain_accuracy, plain_change = example["summary"](example["run"](protect=False, seed=0))
    blip_accuracy, blip_change = example["summary"](example["run"](protect=True, seed=0))
    assert plain_change < -5
    assert blip_change > -2
    assert blip_accuracy > plain_accuracy + 4
