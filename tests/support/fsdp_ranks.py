"""What each rank does in test_sharding.py."""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from bitfreeze import BLIP, Rules, diagonal_fisher
from bitfreeze.model.shards import is_sharded
from support.ddp_ranks import Net, _alone, make_net, task_data
from support.doc_blocks import run_block
from support.ranks import be_a_rank


def sharded_net(mesh: Any = None) -> Net:
    net = make_net()
    fully_shard(net.body[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def training(rank: int, count: int) -> dict[str, Any]:
    net = sharded_net()
    blip = BLIP(net, rules=Rules.strict())
    blip.attach()
    found: dict[str, Any] = {"different": []}
    for task in range(3):
        x, y = task_data(task)
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for step in range(40):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rank::count]), y[rank::count]).backward()
            if step >= 20:
                with torch.no_grad():
                    net(x[:5])  # leaves the parameters of the outer module whole
            optimizer.step()
        whole = make_net()
        whole.load_state_dict({name: p.detach().full_tensor() for name, p in net.named_parameters()})
        inside = blip.intervals()
        found["inside"] = all(
            bool(((p.to_local() >= inside[n][0].to_local()) & (p.to_local() <= inside[n][1].to_local())).all())
            for n, p in net.named_parameters()
        )
        alone = _alone(whole, blip, x, seed=task)  # the state is gathered on all ranks
        torch.manual_seed(task + 10 * rank)
        report = blip.consolidate(x[rank::count].split(16))
        bits = {name: b.full_tensor() for name, b in blip.frozen_bits().items()}
        found["different"].append(sum(int((alone[name] != bits[name]).sum()) for name in alone))
        found["report"] = (report.histogram, report.samples, report.prior, report.used)
    found["bits"], found["capacity"] = bits, blip.capacity()
    found["nbytes"], found["entries"] = blip.nbytes(), sum(p.numel() for p in net.parameters())
    found["state"] = blip.state_dict()
    found["weights"] = {name: p.detach().full_tensor() for name, p in net.named_parameters()}
    found["still sharded"] = all(is_sharded(p) for p in net.parameters())
    found["again"] = _taken_up(blip.state_dict(), blip.state_dict(sharded=True))
    return found


def entry_by_entry(rank: int, count: int) -> dict[str, Any]:
    """The default rules, under which sharded layers are held entry by entry."""
    net = sharded_net()
    blip = BLIP(net, tolerance=1e-3)
    blip.attach()
    found: dict[str, Any] = {"drifts": [], "costs": [], "at edge": []}
    for task in range(3):
        x, y = task_data(task)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
        for _ in range(40):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rank::count]), y[rank::count]).backward()
            optimizer.step()
        found["drifts"].append(blip.drift())
        found["costs"].append(_cost(net, blip) if task else 0.0)
        report = blip.consolidate(x[rank::count].split(16))
        found["at edge"].append(report.at_edge)
        found["directions"] = blip.state_dict()["directions"]
    found["nbytes"], found["entries"] = blip.nbytes(), sum(p.numel() for p in net.parameters())
    return found


def _cost(net: Net, blip: BLIP) -> float:
    """Half the Fisher times squared changes, over all entries."""
    saved = blip.state_dict()["tensors"]
    changes = {name: p.detach().full_tensor() - saved[name]["centre"] for name, p in net.named_parameters()}
    return sum(float((saved[name]["fisher"] * change**2).sum()) / 2 for name, change in changes.items())


def _taken_up(whole: dict[str, Any], sharded: dict[str, Any]) -> bool:
    """Both kinds of state load into a model that is sharded."""
    loaded = []
    for state in (whole, sharded):
        blip = BLIP(sharded_net(), rules=Rules.strict())
        blip.load_state_dict(state)
        loaded.append({name: bits.full_tensor() for name, bits in blip.frozen_bits().items()})
    return all(torch.equal(loaded[0][n], loaded[1][n]) and torch.equal(loaded[0][n], whole["tensors"][n]["bits"])
               for n in loaded[0])  # fmt: skip


def corners(rank: int, count: int) -> dict[str, Any]:
    x, _ = task_data(0)
    found: dict[str, Any] = {}

    def told(name: str, action: Any) -> None:
        try:
            action()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    replicated = init_device_mesh("cpu", (count, 1), mesh_dim_names=("replicate", "shard"))
    net = sharded_net(replicated)
    blip = BLIP(net, rules=Rules.strict())
    torch.manual_seed(0)
    found["hybrid"] = blip.consolidate(x[rank::count].split(16)).histogram
    net = sharded_net()
    torch.manual_seed(0)
    fisher = diagonal_fisher(net, x[rank::count].split(16))
    found["fisher"] = {name: value.full_tensor() for name, value in fisher.items()}

    told("alone", lambda: diagonal_fisher(sharded_net(), [x], distributed=False))
    told("straight-through", lambda: BLIP(sharded_net(), rules=Rules.text(straight_through=True)).attach())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told("first generation", lambda: BLIP(FullyShardedDataParallel(make_net(), device_id=torch.device("cpu"))))
    net = sharded_net()
    with torch.no_grad():
        net.body[0].weight.to_local()[0, 0] = float("inf") if rank == 1 else 0.0
    told("infinite on rank 1", lambda: BLIP(net).attach())

    net = sharded_net()  # given weights outside their range after attach(): all ranks widen together
    blip = BLIP(net, rules=Rules.strict())
    blip.attach()
    with torch.no_grad():
        net.body[0].weight.to_local()[0, 0] = 100.0 if rank == 1 else 0.0
    net(x).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.0).step()
    bound = blip.state_dict()["tensors"]["body.0.weight"]["bound"]
    found["widened"] = net.body[0].weight.full_tensor().max().item(), bound
    return found


def page(rank: int, count: int) -> dict[str, Any]:
    """The page's own block."""
    report = run_block("how-to/scale.md", "FSDP2")["report"]
    return {"samples": report.samples, "frozen": report.frozen_now}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "no weight reached the edge")  # 40 steps move weights by little
    be_a_rank({"all_of_it": lambda *where: {f.__name__: f(*where) for f in (training, entry_by_entry, corners, page)}})
