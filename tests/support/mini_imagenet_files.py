"""Pictures of mini-ImageNet made for tests, in each layout that the reader takes."""

from pathlib import Path

import numpy as np
from PIL import Image

from support.made_files import write_pickle

PARTS = {"train": range(64), "val": range(64, 80), "test": range(80, 100)}
EACH = 6


def class_name(label: int) -> str:
    return f"n{7 * label + 1000:08d}"


def picture(label: int, k: int) -> np.ndarray:
    """One colour that tells the class and the picture."""
    return np.full((84, 84, 3), (label, 10 * k, 200), np.uint8)


def save(path: Path, label: int, k: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(label, k)).save(path)


def lay_out_folders(folder: Path) -> None:
    for label in range(100):
        for k in range(EACH):
            save(folder / "images" / class_name(label) / f"{k}.png", label, k)


def lay_out_part_folders(folder: Path) -> None:
    for part, labels in PARTS.items():
        for label in labels:
            for k in range(EACH):
                save(folder / part / class_name(label) / f"{k}.png", label, k)


def lay_out_lists(folder: Path) -> None:
    for part, labels in PARTS.items():
        lines = ["filename,label"]
        for label in reversed(labels):  # neither classes nor pictures in order
            for k in reversed(range(EACH)):
                save(folder / "images" / f"{class_name(label)}{k:08d}.png", label, k)
                lines.append(f"{class_name(label)}{k:08d}.png,{class_name(label)}")
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


def lay_out_caches(folder: Path) -> None:
    for part, labels in PARTS.items():
        images = np.stack([picture(label, k) for label in labels for k in range(EACH)])
        places = {class_name(label): list(range(EACH * i, EACH * i + EACH)) for i, label in enumerate(labels)}
        content = {"class_dict": places, "image_data": images}
        write_pickle(folder / f"mini-imagenet-cache-{part}.pkl", content, 3)


LAYOUTS = {
    "folders": lay_out_folders,
    "folders by part": lay_out_part_folders,
    "lists": lay_out_lists,
    "caches": lay_out_caches,
}
