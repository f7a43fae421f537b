"""Small files in the formats of the image datasets, with random pixels, so that no two samples are alike."""

import io
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

CIFAR10_BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


def random_images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), np.uint8)


def cifar10_rows(images: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([y]) + x.tobytes() for x, y in zip(images, labels, strict=True))


def cifar100_rows(images: np.ndarray, fine: np.ndarray, coarse: int = 7) -> bytes:
    return b"".join(bytes([coarse, y]) + x.tobytes() for x, y in zip(images, fine, strict=True))


def lay_out_cifar10(root: Path, each: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Write all six batches. Returns their images and labels, one batch after another."""
    folder = root / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    images, labels = random_images(6 * each), np.arange(6 * each) % 10
    for k, name in enumerate(CIFAR10_BATCHES):
        mine = slice(each * k, each * (k + 1))
        (folder / f"{name}.bin").write_bytes(cifar10_rows(images[mine], labels[mine]))
    return images, labels


def lay_out_cifar100(root: Path, train: int = 1000, test: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Write both files. Returns their images and fine labels, first those for training."""
    folder = root / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    images, labels = random_images(train + test, seed=1), np.arange(train + test) % 100
    (folder / "train.bin").write_bytes(cifar100_rows(images[:train], labels[:train]))
    (folder / "test.bin").write_bytes(cifar100_rows(images[train:], labels[train:]))
    return images, labels


def lay_out_svhn(root: Path, train: int = 40, test: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Write both files. Returns their images and digits, which are 0 to 9 in turn; the files label 0 with 10."""
    from scipy.io import savemat

    folder = root / "svhn"
    folder.mkdir(parents=True)
    images, digits = random_images(train + test, seed=2), np.arange(train + test) % 10
    for name, rows in (("train", slice(None, train)), ("test", slice(train, None))):
        labels = np.where(digits[rows] == 0, 10, digits[rows])[:, None].astype(np.uint8)
        savemat(
            folder / f"{name}_32x32.mat",
            {"X": images[rows].transpose(2, 3, 1, 0), "y": labels},
            do_compression=True,
        )
    return images, digits


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def lay_out_notmnist(root: Path, each: int = 20) -> np.ndarray:
    """Write as many letters of each class. Returns them, ``[10, each, 28, 28]``."""
    images = np.random.default_rng(3).integers(0, 256, (10, each, 28, 28), np.uint8)
    for letter, mine in zip("ABCDEFGHIJ", images, strict=True):
        folder = root / "notmnist" / "notMNIST_small" / letter
        folder.mkdir(parents=True)
        for k, image in enumerate(mine):
            (folder / f"{k}.png").write_bytes(png(image))
    return images


def write_pickle(path: Path, content: object, protocol: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))
    return path
