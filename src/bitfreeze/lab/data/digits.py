"""The UCI 8x8 handwritten digits (Alpaydin and Kaynak, 1998; CC BY 4.0): 1,797 images with values 0 to 16."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .catalog import Arrays, DataFile, Dataset, register


def load_digits() -> tuple[Tensor, Tensor]:
    """Images ``[1797, 8, 8]`` (uint8, 0 to 16) and labels ``[1797]`` (int64)."""
    with (files(__package__) / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]).long()


def _read(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"]


DIGITS = register(
    Dataset(
        "digits",
        "handwritten digits, 8 x 8 grey, 1,797 in all, 10 classes",
        files=(DataFile("digits.npz", _read, "bb732276ff0b89904fbe8a061fbfa44cc39e7f4ce5fa4f441ab0ad963c0564e2"),),
        carried=True,
    )
)
