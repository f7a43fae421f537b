"""Made weights and texts in place of the real ones, of which no digest can be known."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bitfreeze.lab.data import efficientnet_lite0, stories15m, texts
from bitfreeze.lab.nets.efficientnet import NAMES, EfficientNetLite0

from .tiny_llama import write_llama, write_texts

RECORDS = {efficientnet_lite0: "EFFICIENTNET_LITE0", stories15m: "STORIES15M", texts: "TEXTS"}


def take_as_they_are(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Make ``root`` the data root, and any file there the right one."""
    patch.setenv("BITFREEZE_DATA", str(root))
    for module, name in RECORDS.items():
        record = getattr(module, name)
        patch.setattr(module, name, replace(record, files=tuple(replace(file, digest=None) for file in record.files)))


def write_language(root: Path) -> None:
    write_llama(root)
    write_texts(root)


def published_state(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of an EfficientNet-Lite0 under the names of the published file."""
    torch.manual_seed(seed)
    state = {}
    for name, value in EfficientNetLite0(32, "free").state_dict().items():
        *block, layer, kind, last = name.split(".")
        place = [f"_{block[0]}", block[1]] if block else []
        state[".".join([*place, NAMES[layer][kind == "norm"], last])] = value
    return {**state, "_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


def write_efficientnet(root: Path) -> None:
    (root / "efficientnet_lite0").mkdir()
    torch.save(published_state(), root / "efficientnet_lite0" / efficientnet_lite0.FILE)
