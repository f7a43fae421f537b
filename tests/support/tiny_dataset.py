"""A dataset of fifty images in the four files of MNIST."""

import gzip
from pathlib import Path

import numpy as np

from bitfreeze.lab.data import array_digest
from bitfreeze.lab.data.catalog import Dataset, Package
from bitfreeze.lab.data.mnist import FILES, idx_dataset
from bitfreeze.lab.data.reading import read_dataset
from support.mirror_server import MirrorServer, good

NAME = "tiny"


def to_idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def tiny_arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (50, 28, 28), np.uint8)
    labels = random.integers(0, 10, 50, np.uint8)
    return dict(zip(FILES, (images[:40], labels[:40], images[40:], labels[40:]), strict=True))


def tiny_files() -> dict[str, bytes]:
    return {name: gzip.compress(to_idx(array), mtime=0) for name, array in tiny_arrays().items()}


def tiny_dataset(mirrors: tuple[str, ...] = (), packages: tuple[Package, ...] = (), digests: bool = True) -> Dataset:
    known = tuple(array_digest((array,)) if digests else None for array in tiny_arrays().values())
    sizes = tuple(len(content) for content in tiny_files().values())
    return idx_dataset(NAME, "fifty images", mirrors, sizes, known, packages)


def lay_out(root: Path) -> Path:
    folder = root / NAME
    folder.mkdir(parents=True)
    for name, content in tiny_files().items():
        (folder / name).write_bytes(content)
    return folder


def mirror(server: MirrorServer, folder: str = "/mirror/") -> str:
    """A mirror of the tiny dataset; its address."""
    for name, content in tiny_files().items():
        server.serve(f"{folder}{name}", good(content))
    return f"{server.base}{folder}"


def other_images() -> bytes:
    """A sound file with other pixels."""
    return gzip.compress(to_idx(tiny_arrays()[FILES[0]] ^ 1))


def assert_tiny(root: Path) -> None:
    for (array,), expected in zip(read_dataset(tiny_dataset(), root), tiny_arrays().values(), strict=True):
        np.testing.assert_array_equal(array, expected)
    assert sorted(path.name for path in (root / NAME).iterdir()) == sorted(FILES)
