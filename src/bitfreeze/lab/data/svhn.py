"""SVHN (Netzer et al., 2011): house numbers cut to single digits, in two files of MATLAB's version 5."""

from pathlib import Path

import numpy as np

from .catalog import Arrays, DataFile, Dataset, Download, register
from .errors import DataCorrupt
from .extras import lab_module
from .images import Images, images_of
from .reading import read_dataset


def read_svhn(path: Path) -> Arrays:
    """Images ``[N, 3, 32, 32]`` and digits ``[N]``, both uint8. The file's label 10 is the digit 0."""
    scipy_io = lab_module("scipy.io")
    try:
        content = scipy_io.loadmat(path, variable_names=["X", "y"], appendmat=False)
    except Exception as error:  # scipy raises many kinds for broken files
        raise DataCorrupt(f"{path} is no MATLAB file of version 5, or a broken one ({error})") from error
    pixels, labels = content.get("X"), content.get("y")
    if pixels is None or pixels.dtype != np.uint8 or pixels.shape[:3] != (32, 32, 3) or pixels.ndim != 4:
        raise DataCorrupt(f"{path} holds no pictures: its X should be 32 x 32 x 3 x N bytes")
    numbers = isinstance(labels, np.ndarray) and labels.dtype.kind in "iuf"  # no cells, nothing sparse or complex
    if not numbers or labels.size != pixels.shape[3] or not np.isin(labels, range(1, 11)).all():
        raise DataCorrupt(f"{path} holds no labels: its y should be a number from 1 to 10 for each picture")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), (labels.ravel() % 10).astype(np.uint8)


SVHN = register(
    Dataset(
        "svhn",
        "digits of house numbers, 32 x 32 colour, 73,257 to train and 26,032 to test, 10 classes",
        # checksums as torchvision quotes them
        files=(
            DataFile("train_32x32.mat", read_svhn, published=("md5:e26dedcc434d2e4c54c9b2d4a06d8373",)),
            DataFile("test_32x32.mat", read_svhn, published=("md5:eb5a983be6a315427106f1b164d9cef3",)),
        ),
        downloads=tuple(
            Download(
                file,
                size,
                (
                    f"https://ufldl.stanford.edu/housenumbers/{file}",
                    f"http://ufldl.stanford.edu/housenumbers/{file}",
                ),
                (file,),
            )
            for file, size in (("train_32x32.mat", 182_040_794), ("test_32x32.mat", 64_275_384))
        ),
    )
)


def load_svhn(root: Path | str | None = None) -> Images:
    """SVHN from ``root`` (default: the data root): images ``[N, 3, 32, 32]`` (uint8) and digits ``[N]`` (int64)."""
    return images_of(*read_dataset(SVHN, root))
