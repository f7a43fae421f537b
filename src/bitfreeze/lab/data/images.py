"""Labelled images: what every loader of an image dataset returns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .catalog import Arrays


@dataclass(frozen=True)
class Images:
    """Images (uint8, the first axis is the sample) and labels (int64) of the training and test sets."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def images_of(train: Arrays, test: Arrays) -> Images:
    """Images from two pairs of arrays: images and labels for training, and for testing."""
    train_x, train_y, test_x, test_y = (torch.from_numpy(array) for array in (*train, *test))
    return Images(train_x, train_y.long(), test_x, test_y.long())
