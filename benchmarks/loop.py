"""What the laboratory's training loop costs, against one written by hand for the same data, network and validation."""

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.streams import Stream, make_stream
from bitfreeze.lab.tasks import TaskData
from bitfreeze.lab.training import Settings, Training
from measure import ratio

SETTINGS = Settings(lr=0.01, batch=64, epochs=10**6, patience=10**6)  # MNIST-5's, without an end
EVALUATION = SETTINGS.evaluation_batch


def measure_loop(method: str, rounds: int, rows: int = 4000) -> tuple[float, float, float]:
    """Our epoch by the bare one, and both in seconds: MNIST-5's network on the first of its tasks' images."""
    stream = make_stream("mnist5")
    data = first_rows(stream.load(stream.tasks[0]), rows)
    ours = our_epochs(stream, data, method)
    bare = bare_epochs(new_network(stream), data)
    return ratio(lambda: next(ours), lambda: next(bare), rounds)


def first_rows(data: TaskData, rows: int) -> TaskData:
    train = data.train.subset(torch.arange(min(rows, len(data.train))))
    return TaskData(train, train, data.test)


def new_network(stream: Stream) -> MultiHead:
    torch.manual_seed(0)
    return build_network({"kind": "mlp", "hidden": [1200]}, stream.shape, [task.classes for task in stream.tasks])


def our_epochs(stream: Stream, data: TaskData, name: str) -> Iterator[tuple[MultiHead, float]]:
    """The network and its validation loss after each epoch. BLIP has frozen bits of a first task on the same data."""
    net, method = new_network(stream), make_method(name, {})
    method.build(net, stream.tasks)
    if name == "blip":
        method.end_task(stream.tasks[0], data)
    for epoch in Training(method, net, stream.tasks[0], data, SETTINGS, seed=0).epochs():
        yield net, epoch.valid_loss


def bare_epochs(net: MultiHead, data: TaskData) -> Iterator[tuple[MultiHead, float]]:
    """The same by hand: plain fine-tuning of the first head, the loss watched, the best weights kept."""
    x, y = data.train.x, data.train.y
    optimizer = SGD(net.parameters(), lr=SETTINGS.lr)
    shuffling = torch.Generator().manual_seed(0)
    normalize = by_hand(data.train.mean[0], data.train.std[0])
    best_loss = float("inf")
    while True:
        net.train()
        total = 0.0
        for rows in torch.randperm(len(y), generator=shuffling).split(SETTINGS.batch):
            loss = F.cross_entropy(net(normalize(x[rows]), 0), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        net.eval()
        valid = 0.0
        with torch.no_grad():
            for some_x, some_y in zip(x.split(EVALUATION), y.split(EVALUATION), strict=True):
                valid += F.cross_entropy(net(normalize(some_x), 0), some_y).item() * len(some_y)
        if valid < best_loss:
            best_loss, best = valid, copy.deepcopy(net.state_dict())  # noqa: F841 - what is timed is its making
        yield net, valid / len(y)


def by_hand(mean: float, std: float) -> Callable[[Tensor], Tensor]:
    return lambda pixels: pixels.float().sub_(255 * mean).div_(255 * std)
