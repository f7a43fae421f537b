"""Five sets of pictures for a pretrained network: draws, labels, pixels, and a run with made weights."""

import pytest
import torch

from bitfreeze.lab.data import Images
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.streams import make_stream, vision5
from support.pretrained import take_as_they_are, write_efficientnet

pytestmark = pytest.mark.filterwarnings("ignore:efficientnet_lite0")


def numbered(count, shape, classes):
    """Pictures whose pixels tell their number."""
    x = torch.arange(count).reshape(-1, *(1,) * len(shape)).expand(-1, *shape).to(torch.uint8)
    return x, torch.arange(count) % classes


@pytest.fixture(autouse=True)
def made(monkeypatch):
    grey = Images(*numbered(250, (28, 28), 10), *numbered(40, (28, 28), 10))
    colour = Images(*numbered(250, (3, 32, 32), 25), *numbered(40, (3, 32, 32), 25))
    sources = [
        source._replace(load=lambda images=images: images)
        for source, images in zip(vision5._SOURCES, (grey, colour, grey, colour, grey), strict=True)
    ]
    monkeypatch.setattr(vision5, "_SOURCES", tuple(sources))
    monkeypatch.setattr(vision5, "VALID", 20)


def test_pictures_are_of_the_first_classes_and_serve_one_purpose_each():
    stream = make_stream("vision5", train=40, test=15)
    assert [task.classes for task in stream.tasks] == [10, 10, 10, 20, 10]
    for task in stream.tasks:
        data = stream.load(task)
        parts = [data.train, data.valid, data.test]
        for part in parts:
            number = part.x[:, 0, 16, 16].long()
            assert torch.equal(part.y, number % (25 if task.index % 2 else 10))
            assert part.x.shape[1:] == (3, 32, 32)
            assert part.y.max() < task.classes
        assert not set(data.train.x[:, 0, 16, 16].tolist()) & set(data.valid.x[:, 0, 16, 16].tolist())
    assert [len(part) for part in parts] == [40, 20, 15]
    pixels, _ = data.test.take(slice(0, 1))
    assert pixels[0, 0, 16, 16].item() == pytest.approx((data.test.x[0, 0, 16, 16].item() - 127) / 128, abs=1e-5)


def test_the_seed_of_the_stream_draws_the_pictures():
    drawn = [make_stream("vision5", seed=seed, train=40).load for seed in (0, 0, 1)]
    task = make_stream("vision5").tasks[0]
    first, same, other = (load(task).train.y for load in drawn)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    with pytest.raises(ValueError, match=r"stream.train must be at least 10, got 2"):
        make_stream("vision5", train=2)


def test_a_run_trains_by_adamw_and_a_probe_leaves_the_backbone(tmp_path, monkeypatch):
    take_as_they_are(tmp_path, monkeypatch)
    write_efficientnet(tmp_path)
    small = ["stream.train=10", "stream.test=10", "stream.tasks=2", "training.epochs=1", "network.size=32"]
    for method, variant in (("ft", ""), ("ft_fix", "probe")):
        result = run(make_config("vision5", method, variant, changes=small), tmp_path / "runs")
        assert len(result.to_json()) > 5
    assert result.bwt == 0
