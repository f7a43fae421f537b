"""The UCI 8x8 handwritten digits (Alpaydin and Kaynak, 1998; CC BY 4.0): 1,797 images with values 0 to 16."""

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor


def load_digits() -> tuple[Tensor, Tensor]:
    """Images ``[1797, 8, 8]`` (uint8, 0 to 16) and labels ``[1797]`` (int64)."""
    with (files(__package__) / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]).long()
