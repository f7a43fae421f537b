"""mini-ImageNet (Vinyals et al., 2016; classes of Ravi and Larochelle, 2017): 100 classes of 600 pictures, at 84 x 84.

Its pictures are ImageNet's, which nobody may pass on. They are read in any of three layouts that people have:

- a folder of pictures for each class in ``images/``, or in ``train/``, ``val/`` and ``test/``;
- all pictures in ``images/``, and the lists ``train.csv``, ``val.csv`` and ``test.csv`` of file names and classes;
- the pickled caches ``mini-imagenet-cache-train.pkl``, ``-val.pkl`` and ``-test.pkl``.

Classes are numbered by name. Pictures come in the order of their names, in the caches in the order of their places.
So all layouts of the same pictures give the same classes.
"""

import csv
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .catalog import Arrays, DataFile, Dataset, register
from .errors import DataCorrupt, DataMissing, DataUnverified
from .extras import lab_module, open_picture
from .pickles import read_plain_pickle
from .reading import missing_sentence

PARTS = ("train", "val", "test")
CLASSES = 100
PICTURES = 600  # of a class
SIDE = 84
SUFFIXES = (".jpg", ".jpeg", ".png")

Pictures = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Class:
    count: int
    read: Callable[[], Pictures] = field(repr=False)  # [count, 84, 84, 3]


class MiniImageNet:
    """The classes of mini-ImageNet. The pictures of a class are read when somebody asks for them."""

    def __init__(self, classes: Mapping[str, _Class]) -> None:
        self.names = sorted(classes)
        self._classes = classes

    def counts(self) -> list[int]:
        """The number of pictures of each class."""
        return [self._classes[name].count for name in self.names]

    def pictures(self, label: int) -> Tensor:
        """All pictures of a class, ``[count, 3, 84, 84]`` (uint8, RGB)."""
        pictures = self._classes[self.names[label]].read()
        return torch.from_numpy(np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)))


def layout_of(folder: Path) -> Callable[[Path], dict[str, _Class]] | None:
    """The function that reads a folder of this layout, or None if it has none of the three."""
    if all((folder / _cache_name(part)).is_file() for part in PARTS):
        return _from_caches
    if (folder / "images").is_dir() and all((folder / f"{part}.csv").is_file() for part in PARTS):
        return _from_lists
    if (folder / "images").is_dir() or all((folder / part).is_dir() for part in PARTS):
        return _from_folders
    return None


def _cache_name(part: str) -> str:
    return f"mini-imagenet-cache-{part}.pkl"


def _from_folders(folder: Path) -> dict[str, _Class]:
    above = [folder / "images"] if (folder / "images").is_dir() else [folder / part for part in PARTS]
    files: dict[str, list[Path]] = {}
    for top in above:
        for path in sorted(top.glob("*/*")):
            if path.suffix.lower() in SUFFIXES:
                files.setdefault(path.parent.name, []).append(path)
    return {name: _of_files(sorted(paths, key=lambda path: path.name)) for name, paths in files.items()}


def _from_lists(folder: Path) -> dict[str, _Class]:
    files: dict[str, list[Path]] = {}
    for part in PARTS:
        for name, label in _listed(folder / f"{part}.csv"):
            files.setdefault(label, []).append(folder / "images" / name)
    names = Counter(path.name for paths in files.values() for path in paths)
    again = sorted(name for name, count in names.items() if count > 1)
    if again:  # a picture would be learned and tested
        raise DataCorrupt(f"the lists in {folder} name {len(again):,} pictures more than once, such as {again[0]}")
    absent = sorted(names.keys() - set(os.listdir(folder / "images")))
    if absent:  # better an error now than in the middle of a run
        raise DataCorrupt(
            f"{folder / 'images'} lacks {len(absent):,} of the pictures that are listed, such as {absent[0]}"
        )
    return {name: _of_files(sorted(paths)) for name, paths in files.items()}


def _listed(path: Path) -> list[tuple[str, str]]:
    """Pairs of a file name and a class."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or not {"filename", "label"} <= set(rows.fieldnames):
                raise DataCorrupt(f"{path} is no list: its first line should be filename,label")
            pairs = [(row["filename"], row["label"]) for row in rows]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataCorrupt(f"{path} is no list, or a broken one ({error})") from error
    if not all(name and label and Path(name).name == name for name, label in pairs):
        raise DataCorrupt(f"{path} has a line without the name of a picture and its class")
    return pairs


def _of_files(paths: list[Path]) -> _Class:
    return _Class(len(paths), cache(lambda: np.stack([_read_picture(path) for path in paths])))  # decoded once


def _read_picture(path: Path) -> Pictures:
    with open_picture(path) as picture:
        return np.asarray(picture.convert("RGB").resize((SIDE, SIDE), lab_module("PIL.Image").Resampling.BILINEAR))


def _from_caches(folder: Path) -> dict[str, _Class]:
    found: dict[str, _Class] = {}
    for part in PARTS:
        path = folder / _cache_name(part)
        content = read_plain_pickle(path)
        images, places = (content.get(k) if isinstance(content, dict) else None for k in ("image_data", "class_dict"))
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE, 3):
            raise DataCorrupt(f"{path} holds no pictures: its 'image_data' should be N x {SIDE} x {SIDE} x 3 bytes")
        if not isinstance(places, dict) or not all(_are_places(rows, len(images)) for rows in places.values()):
            raise DataCorrupt(f"{path} holds no classes: its 'class_dict' should list the pictures of each")
        listed = [row for rows in places.values() for row in rows]
        if len(set(listed)) < len(listed):  # a picture would be learned and tested
            raise DataCorrupt(f"{path} lists {len(listed) - len(set(listed)):,} pictures more than once")
        if found.keys() & places.keys():
            raise DataCorrupt(f"{path} holds classes that another cache holds too")
        found |= {str(name): _Class(len(rows), partial(images.__getitem__, rows)) for name, rows in places.items()}
    return found


def _are_places(rows: Any, count: int) -> bool:
    return isinstance(rows, list) and all(type(row) is int and 0 <= row < count for row in rows)


@dataclass(frozen=True)
class _AnyLayout(DataFile):
    """The whole folder, in any of the three layouts."""

    def find(self, folder: Path) -> Path | None:
        return folder if layout_of(folder) else None


def _open(folder: Path) -> MiniImageNet:
    read = layout_of(folder)
    if read is None:
        raise DataCorrupt(f"{folder} has none of the three layouts: see docs/how-to/data.md")
    images = MiniImageNet(read(folder))
    if not images.names:
        raise DataCorrupt(
            f"{folder} has no folder of pictures for each class: make these folders, or put train.csv, val.csv and "
            "test.csv there, which name the class of each picture"
        )
    if len(images.names) != CLASSES:
        raise DataCorrupt(f"{folder} holds pictures of {len(images.names)} classes, not of {CLASSES}")
    return images


def _read_counts(folder: Path) -> Arrays:
    """The number of pictures of each class. To decode all pictures would take minutes."""
    return (np.array(_open(folder).counts()),)


MINI_IMAGENET = register(
    Dataset(
        "mini_imagenet",
        "pictures of things and animals, 84 x 84 colour, 600 of each of 100 classes; to be put there by hand",
        files=(_AnyLayout("pictures in images/, train.csv, val.csv and test.csv", _read_counts),),
        by_hand="get ImageNet's pictures from image-net.org (after registration) and the three lists of 64, 16 and 20 "
        "classes, or take class folders or pickled caches that you have, and put them there "
        "(docs/how-to/data.md shows how)",
    )
)


def load_mini_imagenet(root: Path | str | None = None) -> MiniImageNet:
    """mini-ImageNet from ``root`` (default: the data root)."""
    folder = MINI_IMAGENET.folder(root)
    if layout_of(folder) is None:
        raise DataMissing(missing_sentence(MINI_IMAGENET, folder, [file.path for file in MINI_IMAGENET.files]))
    images = _open(folder)
    short = [count for count in images.counts() if count != PICTURES]
    detail = (
        f"{len(short)} of its classes do not have {PICTURES} pictures" if short else "its pictures have no known digest"
    )
    warnings.warn(f"mini_imagenet: {detail}, so the dataset is used unverified", DataUnverified, stacklevel=2)
    return images
