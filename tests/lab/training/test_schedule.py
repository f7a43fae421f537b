"""The plateau schedule, against the paper's description of it."""

import copy

import pytest
import torch

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.tasks import TrainingDiverged
from bitfreeze.lab.training import Plateau, Settings, Training


def ladder(lr: float) -> list[float]:
    """Learning rates of the epochs when validation never improves after the first."""
    settings, plateau = Settings(lr=lr), Plateau(lr, 5)
    seen = []
    while not plateau.done:
        seen.append(plateau.lr)
        plateau.update(1.0, {}, settings)
    return seen


@pytest.mark.parametrize(("lr", "steps"), [(0.05, 6), (0.01, 5)])
def test_the_learning_rate_falls_by_three_until_it_is_below_1e_4(lr, steps):
    seen = ladder(lr)
    assert sorted(set(seen), reverse=True) == pytest.approx([lr / 3**k for k in range(steps)])
    assert seen.count(lr) == 6  # the first epoch improves, then five do not
    assert all(seen.count(rate) == 5 for rate in set(seen) - {lr})


def test_best_weights_are_kept_and_ties_are_no_improvement():
    settings, plateau = Settings(lr=0.1), Plateau(0.1, 5)
    for loss, weight in ((2.0, 1.0), (1.0, 2.0), (1.0, 3.0), (1.5, 4.0)):
        plateau.update(loss, {"w": torch.tensor(weight)}, settings)
    assert plateau.best["w"] == 2.0
    assert (plateau.best_loss, plateau.patience, plateau.epoch) == (1.0, 3, 4)


def test_epochs_are_capped():
    settings, plateau = Settings(lr=0.1, epochs=7), Plateau(0.1, 5)
    while not plateau.done:
        plateau.update(1 / (plateau.epoch + 1), {}, settings)
    assert plateau.epoch == 7


def make_training(**settings) -> Training:
    torch.manual_seed(0)
    stream = make_stream("digits5")
    net = build_network({"kind": "mlp", "hidden": [16]}, stream.shape, [2] * 5)
    method = make_method("ft", {})
    method.build(net, stream.tasks)
    task = stream.tasks[1]
    return Training(method, net, task, stream.load(task), Settings(**settings), seed=3)


def test_the_loop_is_that_of_a_hand_written_one():
    """The same numbers to the last bit: SGD on shuffled batches, the last one shorter, best weights restored."""
    training = make_training(lr=0.1, batch=32, epochs=3)
    losses = [epoch.valid_loss for epoch in training.epochs()]
    reference = make_training(lr=0.1, batch=32, epochs=3)
    net, data = reference.net, reference.data.train
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    order = torch.Generator().manual_seed(3)
    best, expected = None, []
    for _ in range(3):
        for rows in torch.randperm(len(data), generator=order).split(32):
            x, y = data.take(rows)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x, 1), y).backward()
            optimizer.step()
        with torch.no_grad():
            x, y = data.take(slice(None))
            expected.append(torch.nn.functional.cross_entropy(net(x, 1), y).item())
        if expected[-1] == min(expected):
            best = {k: v.clone() for k, v in net.state_dict().items()}
    assert losses == pytest.approx(expected, rel=1e-6)
    assert all(torch.equal(value, best[name]) for name, value in training.net.state_dict().items())


def test_a_loss_that_is_no_number_stops_training_and_says_where():
    training = make_training(lr=1e20, batch=32, epochs=3)
    with pytest.raises(TrainingDiverged, match=r"finite, got \w+ at task 2, epoch 1, step \d+; lower the"):
        list(training.epochs())


@pytest.mark.parametrize(
    "bad", [{"batch": 0}, {"epochs": 0}, {"epochs": 2.5}, {"lr": 0.0}, {"lr": float("nan")}, {"factor": 1.0}]
)
def test_settings_that_make_no_sense_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=f"training.{next(iter(bad))} must be"):
        Settings(**bad)


def test_training_by_adamw_is_torch_s_adamw():
    stream = make_stream("digits5")
    task, data = stream.tasks[0], stream.load(stream.tasks[0])
    torch.manual_seed(0)
    net = build_network({"kind": "mlp", "hidden": [8]}, stream.shape, [t.classes for t in stream.tasks])
    other = copy.deepcopy(net)
    method = make_method("ft", {"weight_decay": 0.1})
    method.build(net, stream.tasks)
    settings = Settings(lr=0.01, optimizer="adamw", epochs=1, batch=len(data.train))
    for _ in Training(method, net, task, data, settings, seed=0).epochs():
        pass
    trained = [*other.backbone.parameters(), *other.heads[0].parameters()]
    optimizer = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.1)
    x, y = data.train.take(slice(None))
    torch.nn.functional.cross_entropy(other(x, 0), y).backward()
    optimizer.step()
    for value, expected in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "change", "sentence"),
    [
        ("vcl", [], "training.optimizer must be sgd with vcl, got adamw; the method has Adam of its own"),
        ("ft", ["method.momentum=0.9"], "method.momentum must be 0 with training.optimizer=adamw, got 0.9"),
    ],
)
def test_adamw_is_refused_where_it_would_not_be_used(method, change, sentence, tmp_path):
    config = make_config("digits5", method, changes=["training.optimizer=adamw", *change])
    with pytest.raises(ValueError, match=sentence):
        run(config, tmp_path)
    assert not list(tmp_path.rglob("config.toml"))
