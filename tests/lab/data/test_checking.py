"""Telling which datasets are there and whether they are sound, and the catalogue that says so."""

from pathlib import Path

import pytest

from bitfreeze.lab import data
from bitfreeze.lab.data import Dataset, catalog
from bitfreeze.lab.data.mnist import FILES
from support.tiny_dataset import NAME, lay_out, other_images, tiny_dataset


def test_status_lists_all_datasets(tmp_path: Path, register) -> None:
    register(tiny_dataset())
    (found,) = (entry for entry in data.status(tmp_path) if entry.name == NAME)
    assert (found.state, found.missing, found.folder) == ("missing", FILES, tmp_path / NAME)
    folder = lay_out(tmp_path)
    states = {entry.name: entry for entry in data.status(tmp_path)}
    assert list(states) == sorted(states)
    assert [states[name].state for name in ("digits", "mnist", NAME)] == ["carried", "missing", "here"]
    (folder / FILES[2]).unlink()
    (found,) = (entry for entry in data.status(tmp_path) if entry.name == NAME)
    assert (found.state, found.missing) == ("incomplete", (FILES[2],))


def test_verify_names_what_is_missing_and_what_is_wrong(tmp_path: Path, register) -> None:
    register(tiny_dataset())
    folder = lay_out(tmp_path)
    assert data.verify(NAME, tmp_path).ok
    (folder / FILES[1]).unlink()
    (folder / FILES[0]).write_bytes(other_images())
    check = data.verify(NAME, tmp_path)
    assert not check.ok
    assert [file.state for file in check.files] == ["wrong", "missing", "sound", "sound"]
    assert str(folder / FILES[0]) in check.files[0].detail
    assert str(folder / FILES[1]) in check.files[1].detail


def test_the_carried_digits_are_always_there(tmp_path: Path) -> None:
    assert data.verify("digits", tmp_path).ok
    assert data.get("digits", tmp_path).sources == {"digits.npz": "already there"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", [data.get, data.verify, data.where])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnits", "did you mean mnist or notmnist?"),
        ("fashion-mnist", "did you mean fashion_mnist?"),
        ("zzz", f"choose from {', '.join(sorted(data.datasets))}"),
    ],
)
def test_an_unknown_name_gets_the_near_ones(function, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"there is no dataset '{name}'") as error:
        function(name)
    assert words in str(error.value)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path, register) -> None:
    register(tiny_dataset(()))
    lay_out(tmp_path)
    path = next((tmp_path / NAME).iterdir())
    path.unlink()
    path.mkdir()
    (wrong,) = [file for file in data.verify(NAME, tmp_path).files if file.state == "wrong"]
    assert wrong.detail.endswith("is a folder where a file should be")


# the catalogue


@pytest.mark.parametrize("dataset", data.datasets.values(), ids=lambda dataset: dataset.name)
def test_downloads_give_each_file_once_and_an_archive_holds_what_it_gives(dataset: Dataset) -> None:
    paths = [file.path for file in dataset.files]
    if dataset.downloads:
        assert sorted(path for item in dataset.downloads for path in item.files) == sorted(paths)
    for item in dataset.downloads:
        assert item.size > 0
        assert item.mirrors
        if item.unpacked is None:
            assert item.files == (item.name,)
        else:
            assert item.unpacked.members > len(item.files)
            assert item.unpacked.bytes > item.size


def test_the_known_sizes_are_those_of_the_images() -> None:
    """CIFAR's binary files are rows of labels and 3 x 32 x 32 bytes; the archives also hold a few names of classes."""
    sizes = {name: catalog.datasets[name].downloads[0].unpacked.bytes for name in ("cifar10", "cifar100")}
    assert 0 <= sizes["cifar10"] - 60_000 * (1 + 3 * 32 * 32) < 10_000
    assert 0 <= sizes["cifar100"] - 60_000 * (2 + 3 * 32 * 32) < 10_000
