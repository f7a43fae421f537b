"""CIFAR-100 in ten and twenty tasks: every image once, in a mixed order."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bitfreeze.lab.streams import make_stream
from support import made_files

pytestmark = pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")


@pytest.mark.parametrize(("name", "count"), [("cifar100_10", 10), ("cifar100_20", 20)])
def test_every_image_comes_once_with_its_label(name: str, count: int, made_data: Path) -> None:
    images, labels = made_files.lay_out_cifar100(made_data)
    stream, classes = make_stream(name, seed=3), 100 // count
    assert [task.classes for task in stream.tasks] == [classes] * count
    for task in stream.tasks:
        data = stream.load(task)
        assert len(data.valid) == int(0.05 * 1000 / count)
        for splits, rows in (((data.train, data.valid), slice(1000)), ((data.test,), slice(1000, None))):
            mine = labels[rows] // classes == task.index
            expected = {(bytes(x), y) for x, y in zip(images[rows][mine], labels[rows][mine] % classes, strict=True)}
            x, y = (torch.cat([getattr(s, part) for s in splits]) for part in ("x", "y"))
            assert len(y) == mine.sum()
            assert {(bytes(a), b) for a, b in zip(x.numpy(), y.tolist(), strict=True)} == expected


def test_samples_that_are_stored_class_by_class_come_mixed(made_data: Path) -> None:
    """A norm by batch would else see a single class in each batch of a test."""
    folder = made_data / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    for part, each in (("train", 40), ("test", 20)):
        labels = np.arange(100).repeat(each)
        (folder / f"{part}.bin").write_bytes(
            made_files.cifar100_rows(made_files.random_images(1, 0).repeat(len(labels), 0), labels)
        )
    stream = make_stream("cifar100_10")
    for split in (stream.load(stream.tasks[4]).train, stream.load(stream.tasks[4]).test):
        assert len(set(split.y[:64].tolist())) == 10
    again = make_stream("cifar100_10").load(stream.tasks[4])
    assert torch.equal(again.test.y, stream.load(stream.tasks[4]).test.y)
