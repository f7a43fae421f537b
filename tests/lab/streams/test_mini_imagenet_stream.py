"""mini-ImageNet in twenty tasks: classes by seed, pictures and channels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.streams.mini_imagenet import class_order, picture_orders
from support.mini_imagenet_files import EACH, lay_out_caches, picture

pytestmark = pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")

FIRST = [[26, 86, 2, 55, 75], [80, 84, 33, 81, 93], [83, 30, 56, 24, 16], [93, 67, 6, 64, 96], [20, 10, 96, 16, 63]]


@pytest.mark.parametrize("seed", range(5))
def test_classes_come_in_the_released_order(seed: int) -> None:
    stream = make_stream("mini_imagenet20", seed=seed)
    assert len(stream.tasks) == 20
    assert stream.tasks[0].name == f"classes {', '.join(map(str, FIRST[seed]))}"
    assert {task.classes for task in stream.tasks} == {5}
    np.random.seed(seed)  # noqa: NPY002
    assert class_order(seed) == [part.tolist() for part in np.split(np.random.permutation(100), 20)]  # noqa: NPY002
    assert make_stream("mini_imagenet20", seed=seed, tasks=2).tasks == stream.tasks[:2]
    assert class_order(0)[1] == [93, 16, 73, 54, 95]


def test_pictures_are_shuffled_one_class_after_another() -> None:
    np.random.seed(1234)  # noqa: NPY002
    for order in picture_orders([600] * 3):
        expected = np.arange(600)
        np.random.shuffle(expected)  # noqa: NPY002
        assert order == expected.tolist()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out_caches(tmp_path / "mini_imagenet")
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path))


@pytest.mark.usefixtures("made")
def test_every_picture_of_a_tasks_classes_is_there_once_with_its_label() -> None:
    stream = make_stream("mini_imagenet20", seed=1, validation="train")
    data = stream.load(stream.tasks[0])
    assert data.valid is data.train
    assert (len(data.train), len(data.test)) == (25, 5)
    orders = picture_orders([EACH] * 100)
    for split, rows in ((data.train, slice(5)), (data.test, slice(5, None))):
        expected = [picture(label, k) for label in FIRST[1] for k in orders[label][rows]]
        np.testing.assert_array_equal(split.x, np.stack(expected).transpose(0, 3, 1, 2))
        assert [FIRST[1][y] for y in split.y] == split.x[:, 0, 0, 0].tolist()


@pytest.mark.usefixtures("made")
def test_released_channels_are_blue_first_with_the_statistics_of_red_first() -> None:
    (rgb, red), (bgr, blue) = (
        (data.x, data.take(slice(1))[0])
        for channels in ("rgb", "bgr")
        for stream in [make_stream("mini_imagenet20", channels=channels, tasks=1)]
        for data in [stream.load(stream.tasks[0]).test]
    )
    assert torch.equal(bgr, rgb.flip(1))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(red[0, :, 0, 0], (rgb[0, :, 0, 0] / 255 - mean) / std)
    torch.testing.assert_close(blue[0, :, 0, 0], (rgb[0, [2, 1, 0], 0, 0] / 255 - mean) / std)


@pytest.mark.usefixtures("made")
def test_two_of_a_hundred_are_held_out() -> None:
    stream = make_stream("mini_imagenet20", tasks=1)
    data = stream.load(stream.tasks[0])
    assert (len(data.train), len(data.valid), len(data.test)) == (24, 1, 5)  # at least one; 50 of 2,500
    tuning = make_stream("mini_imagenet20", tasks=1, tuning=True)
    assert len(tuning.load(tuning.tasks[0]).test) == 2


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"stream.channels must be rgb or bgr, got 'cmyk'"):
        make_stream("mini_imagenet20", channels="cmyk")
    with pytest.raises(ValueError, match=r"stream.tasks must be from 1 to 20, got 21"):
        make_stream("mini_imagenet20", tasks=21)
