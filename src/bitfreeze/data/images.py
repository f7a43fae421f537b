"""Labelled images, as every reader of an image dataset gives them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Images (uint8, the sample first) and labels (int64) of the official training and test sets."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
