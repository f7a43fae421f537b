"""What the examples promise: fine-tuning forgets, BLIP does so less."""

import runpy
from pathlib import Path
from typing import Any

from bitfreeze.lab.streams import streams
from support.checkout import ROOT

EXAMPLES = ROOT / "examples"


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


def test_a_pretrained_network_with_batchnorm_forgets_less_with_blip() -> None:
    batchnorm = example("pretrained_batchnorm")
    start = batchnorm["pretrained"]()
    plain, protected = (batchnorm["summary"](batchnorm["run"](start, protect)) for protect in (False, True))
    assert plain[1] < -15
    assert protected[1] > plain[1] + 10
    assert protected[0] > plain[0]


def test_a_transformer_keeps_more_of_earlier_texts_with_blip() -> None:
    transformer = example("transformer")
    plain, protected = (transformer["run"](tolerance) for tolerance in (None, 0.2))
    for text in (0, 1):
        assert protected[-1][text] > plain[-1][text] + 5
    assert sum(protected[-1]) > sum(plain[-1])


def test_a_folder_of_images_is_a_stream(tmp_path: Path) -> None:
    folder = example("image_folder")
    try:
        folder["write_digits"](tmp_path / "images")
        found = folder["compare"](tmp_path / "images", tmp_path / "runs")
    finally:
        del streams["image_folder"]  # others look at all that are registered
    assert [len(row) for row in found["blip"]] == [1, 2, 3, 4, 5]
    assert sum(found["ft"][-1]) / 5 < 97
    assert sum(found["blip"][-1]) / 5 > sum(found["ft"][-1]) / 5 + 2
