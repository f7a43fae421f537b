"""The demo's promise: fine-tuning forgets, BLIP does not (or much less)."""

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_demo_forgets_less_with_blip() -> None:
    demo = runpy.run_path(str(EXAMPLES / "demo.py"))
    plain_accuracy, plain_change = demo["summary"](demo["run"](protect=False, seed=0))
    blip_accuracy, blip_change = demo["summary"](demo["run"](protect=True, seed=0))
    assert plain_change < -5
    assert blip_change > -2
    assert blip_accuracy > plain_accuracy + 4
