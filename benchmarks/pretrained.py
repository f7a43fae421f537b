"""What protecting a pretrained network costs: a training step, measuring what it can do, and the bytes of the state.

    bitfreeze data get stories15m && bitfreeze data get efficientnet_lite0
    python benchmarks/pretrained.py

prints a table, in two minutes of processor time, one thread. A step is the mean over 16, several times as many as lie
between two clamps of a layer that works at many positions, both sides interleaved, best of two rounds. The network is
measured once.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import measure
from bitfreeze import BLIP
from bitfreeze.lab.data import load_stories15m
from bitfreeze.lab.nets import build_network, pretrained_llama
from measure import ratio, seconds

STEPS, ROUNDS = 16, 2


@dataclass
class Case:
    """A network, the part of it that is protected, and what it is measured and trained on."""

    name: str
    net: nn.Module
    watched: str
    scores: Callable[[nn.Module, Tensor], Tensor]
    old: Tensor
    batch: Tensor
    labels: Tensor

    def loss(self, net: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(net, x).flatten(0, -2), labels.flatten())


def stories() -> Case:
    net = pretrained_llama(load_stories15m())
    old, batch = (net.write(count, 64, torch.Generator().manual_seed(count)) for count in (32, 8))
    return Case(
        "stories15M, AdamW, 8 x 64 tokens; measured on 32 x 64", net, "blocks",
        lambda net, x: net.scores(net(x[:, :-1])), old, batch, batch[:, 1:],
    )  # fmt: skip


def efficientnet() -> Case:
    net = build_network({"kind": "efficientnet_lite0", "statistics": "start"}, (3, 64, 64), [10]).train()
    return Case(
        "EfficientNet-Lite0, AdamW, 32 pictures of 64 x 64; measured on 128", net, "backbone",
        lambda net, x: net(x, 0), torch.randn(128, 3, 64, 64), torch.randn(32, 3, 64, 64), torch.randint(10, (32,)),
    )  # fmt: skip


def costs(case: Case) -> tuple[float, float, float]:
    """Step with BLIP / without, measuring / forward and backward passes of the same samples, bytes a parameter."""
    plain = copy.deepcopy(case.net)
    parts = case.old.split(16)
    blip = BLIP(case.net, watch=case.watched, freeze_statistics=True)
    measuring = seconds(lambda: blip.consolidate(parts, forward=lambda x: case.scores(case.net, x)))

    def passes() -> None:
        for x in parts:
            plain.zero_grad()
            case.scores(plain, x).logsumexp(-1).sum().backward()

    passing = min(seconds(passes) for _ in range(ROUNDS))
    optimizers = {net: torch.optim.AdamW(net.parameters(), lr=3e-4) for net in (case.net, plain)}

    def train(net: nn.Module) -> None:
        for _ in range(STEPS):
            optimizers[net].zero_grad()
            case.loss(net, case.batch, case.labels).backward()
            optimizers[net].step()

    with blip.attach():
        step = ratio(lambda: train(case.net), lambda: train(plain), ROUNDS)[0]
    held = sum(parameter.numel() for parameter in case.net.get_submodule(case.watched).parameters())
    return step, measuring / passing, blip.nbytes() / held


def main() -> None:
    measure.clock = time.process_time  # other work may go on beside it
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, 1 thread, {torch.backends.cpu.get_cpu_capability()}\n")
    print("| network | step with / without | measuring / passes over the same samples | bytes a parameter |")
    print("| --- | --- | --- | --- |")
    for make in (stories, efficientnet):
        case = make()
        print(f"| {case.name} | {' | '.join(f'{cost:.2f}' for cost in costs(case))} |", flush=True)


if __name__ == "__main__":
    main()
