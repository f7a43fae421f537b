"""mini-ImageNet, in pictures made for each layout."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bitfreeze.lab import data
from bitfreeze.lab.data import DataCorrupt, DataMissing, load_mini_imagenet
from support.made_files import write_pickle
from support.mini_imagenet_files import (
    EACH,
    LAYOUTS,
    class_name,
    lay_out_caches,
    lay_out_folders,
    lay_out_lists,
    lay_out_part_folders,
    picture,
    save,
)


@pytest.mark.parametrize("lay_out", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_gives_the_same_pictures(lay_out, tmp_path: Path) -> None:
    lay_out(tmp_path / "mini_imagenet")
    with pytest.warns(data.DataUnverified, match="100 of its classes do not have 600 pictures"):
        images = load_mini_imagenet(tmp_path)
    assert images.names == [class_name(label) for label in range(100)]
    assert images.counts() == [EACH] * 100
    for label in (0, 70, 99):
        found = images.pictures(label)
        assert found.dtype == torch.uint8
        expected = np.stack([picture(label, k) for k in range(EACH)]).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(found, expected)
    check = data.verify("mini_imagenet", tmp_path)
    assert [file.state for file in check.files] == ["unverified"]
    (found_status,) = (entry for entry in data.status(tmp_path) if entry.name == "mini_imagenet")
    assert found_status.state == "here"


@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
def test_pictures_are_brought_to_84_by_84_and_grey_ones_get_colours(tmp_path: Path) -> None:
    lay_out_folders(tmp_path / "mini_imagenet")
    folder = tmp_path / "mini_imagenet" / "images" / class_name(5)
    half = np.zeros((300, 400, 3), np.uint8)
    half[:, 200:] = 255
    Image.fromarray(half).save(folder / "0.png")
    Image.fromarray(np.full((50, 60), 77, np.uint8)).save(folder / "1.jpg")
    (folder / "1.png").unlink()
    found = load_mini_imagenet(tmp_path).pictures(5)
    assert found.shape == (EACH, 3, 84, 84)
    assert found[0, :, :, :40].max() == 0
    assert found[0, :, :, 44:].min() == 255
    assert found[1].unique().tolist() == [77]


def test_how_to_get_the_pictures_is_said(tmp_path: Path) -> None:
    for ask in (data.get, lambda name, root: load_mini_imagenet(root)):
        with pytest.raises(DataMissing) as missing:
            ask("mini_imagenet", tmp_path)
        sentence = str(missing.value)
        assert sentence.startswith("mini_imagenet needs pictures in images/, train.csv, val.csv and test.csv in ")
        assert str(tmp_path / "mini_imagenet") in sentence
        assert "image-net.org" in sentence
        assert "docs/how-to/data.md" in sentence
        assert not list(tmp_path.iterdir())


def test_what_is_incomplete_or_broken_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    lay_out_folders(folder)
    shutil.rmtree(folder / "images" / class_name(3))
    with pytest.raises(DataCorrupt, match="pictures of 99 classes, not of 100"):
        load_mini_imagenet(tmp_path)
    assert not data.verify("mini_imagenet", tmp_path).ok


@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
def test_a_file_that_pillow_would_hand_to_a_program_is_no_picture(tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    lay_out_folders(folder)
    path = sorted((folder / "images" / class_name(0)).iterdir())[0]
    Image.new("RGB", (84, 84)).save(path, format="EPS")
    with pytest.raises(DataCorrupt, match=r"is no picture.*cannot identify"):
        load_mini_imagenet(tmp_path).pictures(0)


def test_pictures_without_folders_and_lists_have_no_class(tmp_path: Path) -> None:
    save(tmp_path / "mini_imagenet" / "images" / "n0100000000000001.png", 0, 0)
    with pytest.raises(DataCorrupt, match=r"or put train\.csv, val\.csv and test\.csv there"):
        load_mini_imagenet(tmp_path)
    with pytest.raises(DataMissing, match=r"test\.csv there, which .*; mini_imagenet needs .*image-net"):
        data.get("mini_imagenet", tmp_path)


def test_a_picture_that_is_listed_twice_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    lay_out_lists(folder)
    name = f"{class_name(4)}{2:08d}.png"
    with (folder / "test.csv").open("a") as file:
        file.write(f"{name},{class_name(99)}\n")
    with pytest.raises(DataCorrupt, match=f"name 1 pictures more than once, such as {name}"):
        load_mini_imagenet(tmp_path)


@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
def test_a_class_in_two_parts_has_its_pictures_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    lay_out_part_folders(folder)
    moved = folder / "train" / class_name(4) / "0.png"
    (folder / "test" / class_name(4)).mkdir()
    moved.rename(folder / "test" / class_name(4) / "0.png")
    found = load_mini_imagenet(tmp_path).pictures(4)
    np.testing.assert_array_equal(found[:, 1, 0, 0], 10 * np.arange(EACH))


@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
def test_a_picture_that_is_listed_but_not_there_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    lay_out_lists(folder)
    images = load_mini_imagenet(tmp_path)
    (folder / "images" / f"{class_name(4)}{2:08d}.png").write_bytes(b"rubbish")
    with pytest.raises(DataCorrupt, match=r"00000002\.png is no picture"):
        images.pictures(4)
    (folder / "images" / f"{class_name(3)}{2:08d}.png").unlink()
    with pytest.raises(DataCorrupt, match=r"images lacks 1 of the pictures that are listed, such as .*00000002\.png"):
        load_mini_imagenet(tmp_path)
    assert not data.verify("mini_imagenet", tmp_path).ok


@pytest.mark.parametrize("damage", [b'"' + b"x" * 200_000, b"\xff\xfe,n1\n"], ids=["a stray quote", "no text"])
def test_a_list_that_is_damaged_is_named(damage: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    lay_out_lists(folder)
    with (folder / "val.csv").open("ab") as file:
        file.write(damage)
    with pytest.raises(DataCorrupt, match=r"val\.csv is no list, or a broken one"):
        load_mini_imagenet(tmp_path)


@pytest.mark.parametrize("line", ["../../secret.png,n1", "/etc/passwd,n1", ",n1", "a.png"])
def test_lists_name_pictures_in_their_folder_only(line: str, tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    lay_out_lists(folder)
    (folder / "val.csv").write_text(f"filename,label\n{line}\n")
    with pytest.raises(DataCorrupt, match=r"val\.csv has a line without the name of a picture and its class"):
        load_mini_imagenet(tmp_path)
    (folder / "val.csv").write_text("a,b\n")
    with pytest.raises(DataCorrupt, match=r"val\.csv is no list"):
        load_mini_imagenet(tmp_path)


IMAGES = np.zeros((2, 84, 84, 3), np.uint8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1], "holds no pictures"),
        ({"image_data": IMAGES[:, :80], "class_dict": {"n1": [0]}}, "holds no pictures"),
        ({"image_data": IMAGES, "class_dict": [0]}, "holds no classes"),
        ({"image_data": IMAGES, "class_dict": {"n1": [2]}}, "holds no classes"),
        ({"image_data": IMAGES, "class_dict": {"n1": [False, True]}}, "holds no classes"),
        ({"image_data": IMAGES, "class_dict": {"n1": [0, 0]}}, "lists 1 pictures more than once"),
        ({"image_data": IMAGES, "class_dict": {"n1": [0, 1], "n2": [1]}}, "lists 1 pictures more than once"),
        ({"image_data": IMAGES, "class_dict": {class_name(0): [0]}}, "holds classes that another cache holds too"),
    ],
)
def test_caches_of_another_kind_are_refused(content: object, words: str, tmp_path: Path) -> None:
    lay_out_caches(tmp_path / "mini_imagenet")
    write_pickle(tmp_path / "mini_imagenet" / "mini-imagenet-cache-val.pkl", content)
    with pytest.raises(DataCorrupt, match=rf"cache-val\.pkl {words}"):
        load_mini_imagenet(tmp_path)
