"""Small Bayesian networks on the digits, for the tests of UCB and VCL."""

from torch import nn

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.tasks import Batch
from bitfreeze.lab.training import Settings, Training


def prepare(name: str, backbone: nn.Module | None = None, features: int = 16, **options):
    stream = make_stream("digits5")
    classes = [task.classes for task in stream.tasks]
    net = build_network({"kind": "mlp", "hidden": [16]}, stream.shape, classes)
    if backbone is not None:
        net = MultiHead(backbone, features, classes)
    method = make_method(name, options)
    return stream, net, method, method.build(net, stream.tasks)


def learn(stream, method, net, task, *, lr, epochs=2):
    data = stream.load(task)
    for _ in Training(method, net, task, data, Settings(lr=lr, batch=32, epochs=epochs), seed=0).epochs():
        pass
    method.end_task(task, data)


def first_batch(stream, index=0, size=40) -> Batch:
    task = stream.tasks[index]
    return Batch(*stream.load(task).train.take(slice(0, size)), task)
