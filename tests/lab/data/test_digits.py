"""The digits that the package carries."""

import torch

from bitfreeze.lab.data import load_digits


def test_digits_are_the_1797_images_of_uci() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 8, 8)
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert (images.min(), images.max()) == (0, 16)
    # class counts of the UCI test set
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
