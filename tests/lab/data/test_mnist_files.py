"""MNIST and Fashion-MNIST: their records, and the real files where there are any."""

import ast
import sys
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from bitfreeze.lab import data
from bitfreeze.lab.data import DataCorrupt, DataMissing
from bitfreeze.lab.data.mnist import FILES, load_idx_images
from support.tiny_dataset import NAME, lay_out, tiny_arrays, tiny_dataset

LOADERS = {"mnist": data.load_mnist, "fashion_mnist": data.load_fashion_mnist}


def test_images_are_uint8_and_labels_int64(tmp_path: Path) -> None:
    lay_out(tmp_path)
    images = load_idx_images(tiny_dataset(), tmp_path)
    found = (images.train_x, images.train_y, images.test_x, images.test_y)
    for tensor, (name, array) in zip(found, tiny_arrays().items(), strict=True):
        assert tensor.dtype == (torch.uint8 if "images" in name else torch.int64)
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("name", LOADERS)
def test_no_data_at_all_gives_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path))
    with pytest.raises(DataMissing) as missing:
        LOADERS[name]()
    assert str(missing.value) == (
        f"{name} needs train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, "
        f"t10k-labels-idx1-ubyte.gz in {tmp_path / name}: run `bitfreeze data get {name}`, or put them there by hand, "
        f"or set BITFREEZE_DATA to the folder that has {name}/ in it"
    )
    assert isinstance(missing.value, FileNotFoundError)


def test_only_the_missing_file_is_named(tmp_path: Path) -> None:
    (lay_out(tmp_path) / FILES[2]).unlink()
    with pytest.raises(DataMissing, match=f"^tiny needs {FILES[2]} in .* put it there by hand"):
        load_idx_images(tiny_dataset(), tmp_path)


def test_a_corrupt_file_is_named_with_what_replaces_it(tmp_path: Path) -> None:
    path = lay_out(tmp_path) / FILES[0]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataCorrupt, match=f"^{path} is truncated.*: run `bitfreeze data get {NAME}` to replace it"):
        load_idx_images(tiny_dataset(), tmp_path)


@pytest.mark.parametrize("name", LOADERS)
def test_every_file_can_be_got_from_several_hosts(name: str) -> None:
    dataset = data.datasets[name]
    served = {path: download for download in dataset.downloads for path in download.files}
    assert set(served) == {file.path for file in dataset.files}
    for download in served.values():
        hosts = [urlsplit(address).hostname for address in download.mirrors]
        assert len(set(hosts)) == len(hosts) >= 3
        assert sum(address.startswith("https://") for address in download.mirrors) >= 2
        assert all(address.endswith(f"/{download.name}") for address in download.mirrors)


@pytest.mark.parametrize("dataset", data.datasets.values(), ids=lambda d: d.name)
def test_records_are_complete(dataset: data.Dataset) -> None:
    assert dataset.description
    assert "\n" not in dataset.description
    assert all(file.digest is None or len(file.digest) == 64 for file in dataset.files)
    assert {path for download in dataset.downloads for path in download.files} <= {file.path for file in dataset.files}


@pytest.mark.parametrize("real_data", [(name,) for name in LOADERS], indirect=True, ids=LOADERS)
def test_the_real_files_are_what_the_record_says(real_data: tuple[str]) -> None:
    (real,) = real_data
    assert {file.state for file in data.verify(real).files} == {"sound"}


@pytest.mark.parametrize("real_data", [(name,) for name in LOADERS], indirect=True, ids=LOADERS)
def test_the_real_images(real_data: tuple[str]) -> None:
    (real,) = real_data
    images = LOADERS[real]()
    assert images.train_x.shape == (60000, 28, 28)
    assert images.test_x.shape == (10000, 28, 28)
    assert images.train_x.dtype == images.test_x.dtype == torch.uint8
    assert images.train_y.dtype == images.test_y.dtype == torch.int64
    # known of both: MNIST's first ten labels and class counts, Fashion-MNIST's equal classes, pixel means as published
    if real == "mnist":
        assert images.train_y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
        assert images.train_y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert images.train_x.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
    else:
        assert images.train_y.bincount().tolist() == [6000] * 10
        assert images.test_y.bincount().tolist() == [1000] * 10
        assert images.train_x.float().mean().item() / 255 == pytest.approx(0.2860, abs=1e-4)


@pytest.mark.parametrize("path", sorted(Path(data.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_importing_needs_only_torch_and_numpy(path: Path) -> None:
    """And Python's own library; what else is needed is imported where it is used."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 0]
    assert {name.split(".")[0] for name in named} <= {"torch", "numpy", *sys.stdlib_module_names}
