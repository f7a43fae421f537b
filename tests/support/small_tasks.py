"""Small networks and tasks for the tests of methods."""

import torch
from torch import Tensor, nn

from bitfreeze.lab.methods import Method, make_method
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.tasks import Split, Task, TaskData
from bitfreeze.lab.training import Settings, Training

STREAM = make_stream("digits5")
TASKS = STREAM.tasks
SETTINGS = Settings(lr=0.1, batch=32, epochs=2)


def mlp() -> MultiHead:
    return build_network({"kind": "mlp", "hidden": [12]}, STREAM.shape, [task.classes for task in TASKS])


def convolutional() -> MultiHead:
    backbone = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Dropout(0.1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 20), nn.ReLU(),
    )  # fmt: skip
    return MultiHead(backbone, 20, [task.classes for task in TASKS])


def prepare(name: str, make_net=mlp, **options) -> Method:
    torch.manual_seed(0)
    net = make_net()
    method = make_method(name, options)
    method.build(net, TASKS)
    return method


def train(method: Method, task: Task) -> TaskData:
    data = STREAM.load(task)
    for _ in Training(method, method.net, task, data, SETTINGS, seed=task.index).epochs():
        pass
    return data


def learn(method: Method, task: Task) -> None:
    method.end_task(task, train(method, task))


def flat(net: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach().clone()


def few(task: Task, count: int) -> TaskData:
    """The first samples of a task, for comparisons with slow truth."""
    split: Split = STREAM.load(task).train.subset(torch.arange(count))
    return TaskData(split, split, split)


def expected_squares(net: MultiHead, task: Task, split: Split) -> dict[str, Tensor]:
    """The exact Fisher by brute force: for each sample and each label, one backward pass."""
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in net.named_parameters()}
    net.eval()
    for x, _ in split.batches(1):
        scores = net(x, task.index).log_softmax(1)[0]
        for score in scores:
            net.zero_grad()
            score.backward(retain_graph=True)
            for name, p in net.named_parameters():
                if p.grad is not None:
                    total[name] += score.exp().item() * p.grad.double() ** 2
    net.zero_grad()
    return {name: value / len(split) for name, value in total.items()}
