"""A stream of your own from a folder of images, learned by the laboratory: fine-tuning beside BLIP.

    python examples/image_folder.py              # makes a small folder of images for itself
    python examples/image_folder.py my_images    # my_images/<task>/<train or test>/<class>/*.png, all of one size

Needs the extra 'lab'.
"""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from PIL import Image

from bitfreeze import lab
from bitfreeze.lab.data import load_digits
from bitfreeze.lab.streams import Stream, register_stream
from bitfreeze.lab.tasks import Split, Task, TaskData

PRESET = {
    "network": {"kind": "mlp", "hidden": [64, 64]},
    "training": {"lr": 0.2, "batch": 32, "epochs": 20},
}
# of a network that is sure of all its training images a few hundred drawn labels tell little
OPTIONS = {"ft": [], "blip": ["method.labels=exact"]}


def read_image(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image.convert("L"))


def read_split(folder: Path) -> Split:
    """The images below one folder for each class, as bytes [n, 1, height, width], and the class of each."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(file, label) for label, path in enumerate(classes) for file in sorted(path.glob("*.png"))]
    pixels = np.stack([read_image(file) for file, _ in files])
    labels = torch.tensor([label for _, label in files])
    return Split(torch.from_numpy(pixels)[:, None], labels, mean=(0.3,), std=(0.35,))


def image_folder(*, seed: int = 0, folder: Annotated[str, "folder of the images"] = "") -> Stream:
    """A task for each folder in ``folder``, in the order of their names."""
    places = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    tasks = tuple(Task(k, place.name, len(list((place / "train").iterdir()))) for k, place in enumerate(places))
    height, width = read_image(next(Path(folder).rglob("*.png"))).shape

    def load(task: Task) -> TaskData:
        train, test = (read_split(places[task.index] / part) for part in ("train", "test"))
        return TaskData(train, train, test)

    return Stream("image_folder", (1, height, width), tasks, load)


register_stream("image_folder", "images from a folder", needs=(), make=image_folder, preset=PRESET)


def write_digits(folder: Path) -> None:
    """Five tasks of two digits each, as images."""
    images, labels = load_digits()
    for k, (image, label) in enumerate(zip(images.numpy(), labels.tolist(), strict=True)):
        place = folder / f"task{label // 2 + 1}" / ("test" if k % 4 == 0 else "train") / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(place / f"{k}.png")


def compare(folder: Path, runs: Path) -> dict[str, list[list[float]]]:
    """The accuracy matrix of each method."""
    found = {}
    for method in ("ft", "blip"):
        config = lab.make_config("image_folder", method, changes=[f"stream.folder={folder}", *OPTIONS[method]])
        lab.run(config, root=runs)
        found[method] = lab.read_run(config.name, root=runs).matrix
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(place) / "images"
        if len(sys.argv) < 2:
            write_digits(folder)
        for method, matrix in compare(folder, Path(place) / "runs").items():
            print({"ft": "without BLIP", "blip": "with BLIP"}[method])
            for t, row in enumerate(matrix):
                print(f"  after task {t + 1}" + "".join(f"{value:8.1f}" for value in row))


if __name__ == "__main__":
    main()
