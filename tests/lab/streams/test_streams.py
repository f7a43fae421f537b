"""Streams: counts, labels and orders as the benchmarks define them."""

import pytest
import torch

from bitfreeze.lab.data import load_digits
from bitfreeze.lab.streams import make_stream, streams
from bitfreeze.lab.streams.permuted import pixel_order
from bitfreeze.lab.streams.stream import hold_out, shuffled, validation_of
from bitfreeze.lab.tasks import Split

needs_mnist = pytest.mark.parametrize("real_data", [("mnist",)], indirect=True, ids=["mnist"])


def test_every_stream_is_listed_with_a_description():
    supervised = {name for name, record in streams.items() if record.trainer == "supervised"}
    pictures = {"alt_cifar", "cifar100_10", "cifar100_20", "five_datasets", "mini_imagenet20", "vision5"}
    assert supervised == {"digits5", "mnist5", "pmnist", "pmnist_domain"} | pictures
    assert all(record.description for record in streams.values())


def test_digits5_has_every_image_once():
    stream = make_stream("digits5")
    parts = [split for task in stream.tasks for split in (stream.load(task).train, stream.load(task).test)]
    assert sum(len(split) for split in parts) == 1797
    assert all(set(split.y.tolist()) == {0, 1} for split in parts)
    images, labels = load_digits()
    first = stream.load(stream.tasks[3]).test
    rows = torch.arange(1797)[(labels // 2 == 3) & (torch.arange(1797) % 4 == 0)]
    assert torch.equal(first.x[:, 0], images[rows] * 15)
    assert torch.equal(first.y, labels[rows] - 6)


def test_pixels_are_normalised_on_the_way_out():
    x = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8)
    split = Split(x, torch.arange(5), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    out, y = split.take(torch.tensor([3, 1]))
    mean, std = torch.tensor([0.1, 0.2, 0.3])[:, None, None], torch.tensor([0.5, 0.6, 0.7])[:, None, None]
    torch.testing.assert_close(out, (x[[3, 1]] / 255 - mean) / std)
    assert y.tolist() == [3, 1]
    assert torch.equal(torch.cat([b for b, _ in split.batches(2)]), split.take(slice(None))[0])


@pytest.mark.parametrize("share", [0.1, 0.15, 0.02])
def test_held_out_samples_are_apart_and_the_first_of_those_shuffled_by_the_seed(share):
    split = Split(torch.arange(100, dtype=torch.uint8)[:, None, None, None], torch.arange(100), (0.0,), (1.0,))
    train, valid = validation_of(split, "holdout", seed=1, share=share)
    assert len(valid) == int(100 * share)
    assert sorted(train.y.tolist() + valid.y.tolist()) == list(range(100))
    assert set(valid.y.tolist()) == set(shuffled(100, seed=1)[: len(valid)])
    assert valid.y.tolist() != validation_of(split, "holdout", seed=2, share=share)[1].y.tolist()


def test_something_is_always_held_out():
    split = Split(torch.zeros(5, 1, 1, 1, dtype=torch.uint8), torch.arange(5), (0.0,), (1.0,))
    assert [len(part) for part in hold_out(split, 0.02, torch.arange(5))] == [4, 1]


def test_tuning_never_touches_the_test_set():
    plain, tuning = make_stream("digits5"), make_stream("digits5", tuning=True)
    for task in plain.tasks:
        full, part = plain.load(task), tuning.load(task)
        seen = torch.cat([part.train.x, part.test.x]).flatten(1).tolist()
        assert sorted(seen) == sorted(full.train.x.flatten(1).tolist())
        assert len(part.test) == len(full.train) // 10
        assert part.valid is part.train
    apart = make_stream("digits5", tuning=True, validation="holdout").load(plain.tasks[0])
    assert len(apart.train) + len(apart.valid) + len(apart.test) == len(plain.load(plain.tasks[0]).train)


@pytest.mark.parametrize(
    ("seed", "count", "order"),
    [  # the orders of the released loaders
        (0, 10, [2, 8, 4, 9, 1, 6, 7, 3, 0, 5]),
        (1, 10, [2, 9, 6, 4, 0, 3, 1, 7, 8, 5]),
        (4, 10, [3, 8, 4, 9, 2, 6, 0, 1, 5, 7]),
        (0, 5, [2, 0, 1, 3, 4]),
        (3, 5, [3, 4, 1, 0, 2]),
    ],
)
def test_task_orders_are_those_of_the_released_loaders(seed, count, order):
    assert shuffled(seed=seed, count=count) == order


def test_pixel_orders_are_permutations_and_differ():
    orders = [pixel_order(r, i, 784) for r, i in ((2, 0), (8, 1), (2, 1))]
    assert all(sorted(order.tolist()) == list(range(784)) for order in orders)
    assert not torch.equal(orders[0], orders[2])


@needs_mnist
@pytest.mark.usefixtures("real_data")
def test_mnist5_counts():
    stream = make_stream("mnist5")
    counts = [(len(stream.load(t).train), len(stream.load(t).test)) for t in stream.tasks]
    assert counts == [(12665, 2115), (12089, 2042), (11263, 1874), (12183, 1986), (11800, 1983)]
    assert len(make_stream("mnist5", validation="holdout").load(stream.tasks[0]).valid) == 1266


def test_pmnist_cut_short_has_the_first_tasks_of_the_whole():
    whole, short = make_stream("pmnist"), make_stream("pmnist", tasks=3)
    assert short.tasks == whole.tasks[:3]
    with pytest.raises(ValueError, match=r"stream.tasks must be from 1 to 10, got 11"):
        make_stream("pmnist", tasks=11)


@needs_mnist
@pytest.mark.usefixtures("real_data")
def test_pmnist_permutes_each_image_alike_and_the_paper_starts_with_plain_mnist():
    released, paper = make_stream("pmnist"), make_stream("pmnist", first="identity")
    plain = paper.load(paper.tasks[0]).test
    second = released.load(released.tasks[1]).test
    assert torch.equal(second.x.flatten(1), plain.x.flatten(1)[:, pixel_order(8, 1, 784)])
    assert not torch.equal(released.load(released.tasks[0]).test.x, plain.x)


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match=r"stream.first must be permuted or identity, got 'last'"):
        make_stream("pmnist", first="last")
    with pytest.raises(ValueError, match=r"stream.validation must be train or holdout, got 'test'"):
        make_stream("digits5", validation="test")
    with pytest.raises(ValueError, match="there is no setting of stream 'validatoin': did you mean validation"):
        make_stream("digits5", validatoin="train")
