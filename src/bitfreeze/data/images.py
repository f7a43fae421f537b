"""Labelled images, as every reader of an image dataset gives them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .catalog import Arrays


@dataclass(frozen=True)
class Images:
    """Images (uint8, the sample first) and labels (int64) of the training and test sets."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def images_of(train: Arrays, test: Arrays) -> Images:
    """From the arrays of images and labels that two files hold."""
    train_x, train_y, test_x, test_y = (torch.from_numpy(array) for array in (*train, *test))
    return Images(train_x, train_y.long(), test_x, test_y.long())
