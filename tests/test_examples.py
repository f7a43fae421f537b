"""What the examples promise: fine-tuning forgets, BLIP does so less."""

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_own_loop_forgets_less_with_blip() -> None:
    own_loop = example("own_loop")
    plain_accuracy, plain_change = own_loop["summary"](own_loop["run"](protect=False, seed=0))
    blip_accuracy, blip_change = own_loop["summary"](own_loop["run"](protect=True, seed=0))
    assert plain_change < -5
    assert blip_change > -2
    assert blip_accuracy > plain_accuracy + 4


def test_adam_with_weight_decay_forgets_less_with_blip() -> None:
    adam = example("adam_weight_decay")
    plain, protected = (adam["summary"](adam["run"](protect, 1)) for protect in (False, True))
    assert plain[1] < -4
    assert protected[1] > -2.5
    assert protected[0] > plain[0] + 1
