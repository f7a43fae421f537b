"""notMNIST (Bulatov, 2011), the small set: letters A to J in many typefaces, a folder of PNG files for each.

The archive has files that are no pictures and hundreds of pictures that occur twice, some of them under several
letters. Each picture is taken once, under the first of its letters, and pictures are ordered by their pixels, so the
names of the files do not matter. There is no official test set: a tenth of each class is put aside, always the same.
"""

from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from .catalog import Arrays, DataFile, Dataset, Download, register
from .errors import DataCorrupt
from .extras import open_picture
from .images import Images
from .limits import Contents
from .reading import read_dataset

LETTERS = "ABCDEFGHIJ"
SIDE = 28
TEST_SHARE = 0.1


def read_notmnist(path: Path) -> Arrays:
    """Images ``[N, 28, 28]`` and labels ``[N]``, both uint8, by class and within it by pixels."""
    label_of: dict[bytes, int] = {}
    for label, letter in enumerate(LETTERS):
        if not (path / letter).is_dir():
            raise DataCorrupt(f"{path} holds no folder {letter}")
        for picture in _pictures(path / letter):
            label_of.setdefault(picture, label)
    images = sorted(label_of, key=lambda picture: (label_of[picture], picture))
    labels = np.array([label_of[picture] for picture in images], np.uint8)
    if set(labels.tolist()) != set(range(len(LETTERS))):
        raise DataCorrupt(f"{path} holds no pictures of some letters")
    return np.frombuffer(bytearray().join(images), np.uint8).reshape(-1, SIDE, SIDE), labels


def _pictures(folder: Path) -> set[bytes]:
    found = set()
    for path in folder.glob("*.png"):
        # a few files of the archive are no pictures
        with suppress(DataCorrupt), open_picture(path, formats=("PNG",)) as picture:
            if picture.size == (SIDE, SIDE) and picture.mode == "L":
                found.add(picture.tobytes())
    return found


NOTMNIST = register(
    Dataset(
        "notmnist",
        "letters A to J, 28 x 28 grey, 18,232 different ones, a tenth of them to test, 10 classes",
        files=(
            DataFile(
                "notMNIST_small",
                read_notmnist,
                "0de3b6d594bb5e2460381307965644a1731a63dd7a24fb545e5768405f24aafe",
            ),
        ),
        downloads=(
            Download(
                "notMNIST_small.tar.gz",
                8_458_043,
                (
                    "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
                    "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
                ),
                ("notMNIST_small",),
                Contents(bytes=16_000_000, members=18_737),  # the bytes are a cap: they are not published
            ),
        ),
    )
)


def load_notmnist(root: Path | str | None = None) -> Images:
    """notMNIST from ``root`` (default: the data root): images ``[N, 28, 28]`` (uint8) and labels ``[N]`` (int64)."""
    ((images, labels),) = read_dataset(NOTMNIST, root)
    test = held_for_testing(labels)
    x, y, held = torch.from_numpy(images), torch.from_numpy(labels).long(), torch.from_numpy(test)
    return Images(x[~held], y[~held], x[held], y[held])


def held_for_testing(labels: np.ndarray) -> np.ndarray:
    """Which samples are for testing: a random tenth of each class."""
    random = np.random.RandomState(0)
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        (mine,) = np.nonzero(labels == label)
        held[random.permutation(mine)[: round(TEST_SHARE * len(mine))]] = True
    return held
