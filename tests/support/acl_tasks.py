"""Small networks of ACL on the digits, for the tests of ACL and ACL-R."""

import copy

import torch
from torch import nn

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.tasks import Batch
from bitfreeze.lab.training import Settings, Training

STREAM = make_stream("digits5")
TASKS = STREAM.tasks


def plain_net() -> MultiHead:
    return build_network({"kind": "mlp", "hidden": [8]}, (1, 8, 8), [2] * 5)


def prepare(name="acl", **options):
    torch.manual_seed(0)
    method = make_method(name, {"s_step": 1, "latent": 16, "units": 12, **options})
    return method, method.build(plain_net(), TASKS)


def learn(method, net, index, epochs=1):
    data = STREAM.load(TASKS[index])
    for _ in Training(method, net, TASKS[index], data, Settings(lr=0.05, epochs=epochs), seed=index).epochs():
        pass
    method.end_task(TASKS[index], data)


def begin(method, index):
    method.begin_task(TASKS[index], STREAM.load(TASKS[index]))


def some_batch(index=0, count=16) -> Batch:
    return Batch(torch.randn(count, 1, 8, 8), torch.randint(2, (count,)), TASKS[index])


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(module.state_dict())


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def images(index):
    return STREAM.load(TASKS[index]).test.take(slice(None))[0]
