"""What each rank does in test_distributed.py."""

import copy
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bitfreeze import BLIP, Rules
from bitfreeze.blip.tensor_state import TensorState
from bitfreeze.fisher import estimate
from bitfreeze.model.parameters import find_parameters
from bitfreeze.model.ranks import Ranks, current_ranks
from support.doc_blocks import run_block
from support.ranks import be_a_rank

STEPS = (334, 333, 333)
RULES = {"strict": Rules.strict(), "directions": Rules.directions()}


class Net(nn.Module):
    """With a layer that has no rule, so that a fallback takes part."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.scale


def make_net() -> Net:
    torch.manual_seed(0)
    return Net()


def task_data(task: int, count: int = 101) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(task)
    x = torch.randn(count, 6, generator=draw)
    return x, (x @ torch.randn(6, 3, generator=draw)).argmax(1)


def ways_of_sharing(rank: int, count: int) -> dict[str, Any]:
    """The Fisher of 37 samples, dealt out in many ways; and the talk itself."""
    x, _ = task_data(0, 37)
    mine, ranks, net = x[rank::count], current_ranks(), make_net()
    torch.manual_seed(5 + rank)  # ranks need not agree: rank 0's random state counts
    own = torch.Generator().manual_seed(7 + rank)
    found = {
        "uneven": estimate(net, mine.split(3 + 5 * rank)),
        "first 20": estimate(net, mine.split(4), samples=20),
        "first 1": estimate(net, mine.split(4), samples=1),
        "generator": estimate(net, mine.split(4), generator=own),
        "exact": estimate(net, mine.split(4), labels="exact"),
        "one has all": estimate(net, [x] if rank == 1 else []),
        "alone": estimate(net, [x], distributed=False),
    }
    return {
        "random state": torch.get_rng_state(),
        "fisher": {name: (each.values, each.samples, each.ways) for name, each in found.items()},
        "gathered": ranks.gather({"rank": rank, "text": "ä" * (10 * rank), "number": 0.1}),
        "sum": ranks.sum_(torch.arange(6.0).reshape(2, 3).T * (rank + 1)),
        "first": ranks.broadcast_(torch.full((2,), float(rank))),
        "decided": _decided(rank, ranks),
    }


def _decided(rank: int, ranks: Ranks) -> dict[str, Tensor]:
    """States that differ, as rounding might make them."""
    slot, parts = find_parameters(make_net())[0], {"bits": torch.uint8, "centre": torch.int32, "fisher": torch.float32}
    values = {name: torch.full((3,), rank, dtype=dtype) for name, dtype in parts.items()}
    state = TensorState(slot, 20, Rules.strict(), 1.0, 1.0, **values)
    state.take_from_first_(ranks)
    return {name: getattr(state, name) for name in parts}


def failures(rank: int, count: int) -> dict[str, Any]:
    """Bad data on one rank: every rank is told, nothing has changed, and it can go on."""
    net, found = make_net(), {}
    x, _ = task_data(0)
    blip = BLIP(net, rules=Rules.strict())

    def told(name: str, data: Any, **options: Any) -> None:
        before = copy.deepcopy(blip.state_dict()), net.body[0].weight.clone()
        try:
            blip.consolidate(data, **options)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        assert torch.equal(before[1], net.body[0].weight)
        assert before[0] == blip.state_dict() if not blip.tasks else blip.state_dict()["tasks"] == before[0]["tasks"]

    told("bad data on rank 1", [x * float("nan")] if rank == 1 else [x])
    told("loader of rank 1 breaks", _broken(x) if rank == 1 else [x])
    told("no samples at all", [])
    told("labels are not known on rank 0", [x], labels="none" if rank == 0 else "sample")
    blip.consolidate([x[rank::count]])
    with torch.no_grad():
        net.body[0].weight[0, 0] += rank
    told("weights of rank 1 differ", [x], outside="mend")
    with torch.no_grad():
        net.body[0].weight[0, 0] += 10.0 * rank
    told("outside on rank 1", [x])
    return found


def _broken(x: Tensor) -> Any:
    yield x[:10]
    raise OSError("the disk is gone")


def ddp(rank: int, count: int) -> dict[str, Any]:
    return {name: _own_loop(rank, rules) for name, rules in RULES.items()}


def _own_loop(rank: int, rules: Rules) -> dict[str, Any]:
    """A user's own loop over three tasks, 1,000 steps in all."""
    net = make_net()
    model = DistributedDataParallel(net)
    blip = BLIP(model, rules=rules)
    blip.attach()
    found: dict[str, Any] = {"different": [], "total": 0, "reports": []}
    for task, steps in enumerate(STEPS):
        x, y = task_data(task)
        sampler = DistributedSampler(TensorDataset(x, y), shuffle=False)
        loader = DataLoader(TensorDataset(x, y), batch_size=8, sampler=sampler)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        done = 0
        while done < steps:
            for inputs, labels in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                done += 1
                if done == steps:
                    break
        alone = _alone(net, blip, x, seed=task) if rank == 0 else {}
        torch.manual_seed(task + 10 * rank)
        report = blip.consolidate(loader, samples=len(x))  # the sampler repeats a sample to fill up
        found["reports"].append((report.histogram, report.samples, report.prior, report.share, report.drift))
        bits = blip.frozen_bits()
        found["different"].append(sum(int((alone[name] != bits[name]).sum()) for name in alone))
        found["total"] = sum(b.numel() for b in bits.values())
    found["parameters"] = {name: p.detach() for name, p in net.named_parameters()}
    found["state"], found["capacity"] = blip.state_dict(), blip.capacity()
    return found


def buffers(rank: int, count: int) -> dict[str, Any]:
    """DistributedDataParallel sends buffers around in forward passes, of which ranks have different numbers here."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    x, y = task_data(0, 12)
    blip = BLIP(model, freeze_statistics=True)
    F.cross_entropy(model(x), y).backward()
    samples = blip.consolidate(x[rank::count].split(1 + 5 * rank)).samples
    F.cross_entropy(model(x), y).backward()  # and then they go on as before
    return {"samples": samples, "gradient": model.module[0].weight.grad}


def page(rank: int, count: int) -> dict[str, Any]:
    """The page's own block."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no weight reached the edge")  # a few steps on noise
        names = run_block("how-to/scale.md", "Your own loop with DistributedDataParallel")
    return {"samples": names["report"].samples, "task": names["report"].task, "names": list(names["report"].tensors)}


def _alone(net: Net, blip: BLIP, x: Tensor, seed: int) -> dict[str, Tensor]:
    """The bits that one process would freeze with all of the samples."""
    twin = copy.deepcopy(net)
    other = BLIP(twin, rules=blip.rules)
    other.load_state_dict(blip.state_dict())
    torch.manual_seed(seed)
    other.consolidate(x.split(16), distributed=False)
    return other.frozen_bits()


if __name__ == "__main__":
    assert Ranks() == current_ranks()
    be_a_rank(
        {"all_of_it": lambda *where: {f.__name__: f(*where) for f in (ways_of_sharing, failures, ddp, buffers, page)}}
    )
