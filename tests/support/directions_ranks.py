"""What each rank does in test_directions_ranks.py."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bitfreeze import BLIP, Rules
from support.ddp_ranks import Net, make_net, task_data
from support.ranks import be_a_rank

RULES = {
    "all": Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=2, leading=3),
    "few": Rules.directions(temperature=1.0, damping=0.0, strongest=4, every=2, leading=0),
}
TOLERANCE, TASKS, STEPS = 0.02, 3, 10


def learn(model: nn.Module, blip: BLIP, rank: int, count: int) -> list[Any]:
    """Three tasks, with this rank's share of each batch. Returns what the reports say."""
    reports = []
    for task in range(TASKS):
        x, y = task_data(task, 40)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rank::count]), y[rank::count]).backward()
            optimizer.step()
        report = blip.consolidate(x[rank::count].split(7), labels="exact")
        edges = {name: tensor.at_edge for name, tensor in report.tensors.items()}
        ways = {name: tensor.fisher_way for name, tensor in report.tensors.items()}
        reports.append({"samples": report.samples, "drift": report.drift, "edges": edges, "ways": ways})
    return reports


def ddp(rank: int, count: int) -> dict[str, Any]:
    found = {}
    for name, rules in RULES.items():
        net = make_net().double()
        for_doubles(net)
        model = DistributedDataParallel(net)
        blip = BLIP(model, rules=rules, tolerance=TOLERANCE)
        blip.attach()
        reports = learn(model, blip, rank, count)
        found[name] = {"reports": reports, "state": blip.state_dict(), "weights": dict(net.state_dict())}
    return found


def for_doubles(net: Net) -> None:
    """Let the network take data in float32."""
    net.register_forward_pre_hook(lambda _, given: (given[0].double(),))


def fsdp(rank: int, count: int) -> dict[str, Any]:
    net = make_net()
    fully_shard(net.body[0])
    fully_shard(net)
    blip = BLIP(net, rules=RULES["all"], tolerance=TOLERANCE)
    blip.attach()
    reports = learn(net, blip, rank, count)
    intervals = blip.intervals()
    inside = all(
        bool(((p.to_local() >= intervals[n][0].to_local()) & (p.to_local() <= intervals[n][1].to_local())).all())
        for n, p in net.named_parameters()
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.to_local().add_(0.01)
    drift = blip.drift()
    weights = {name: p.detach().full_tensor() for name, p in net.named_parameters()}
    return {
        "reports": reports, "inside": inside, "state": blip.state_dict(), "drift": drift, "weights": weights,
        "taken up": taken_up(),
    }  # fmt: skip


def taken_up() -> dict[str, Any]:
    """The state of a whole model in one that is sharded: the Fisher of its layers is spread over their entries."""
    whole = BLIP(make_net(), rules=RULES["few"], tolerance=TOLERANCE)
    x, _ = task_data(0, 40)
    whole.consolidate([x], labels="exact", distributed=False)
    net = make_net()
    fully_shard(net)
    blip = BLIP(net, rules=RULES["few"], tolerance=TOLERANCE)
    blip.load_state_dict(whole.state_dict())
    blip.clamp_()
    found = {name: bits.full_tensor() for name, bits in blip.frozen_bits().items()}
    return {"expected": whole.frozen_bits(), "found": found}


if __name__ == "__main__":
    be_a_rank({"all_of_it": lambda *where: {f.__name__: f(*where) for f in (ddp, fsdp)}})
