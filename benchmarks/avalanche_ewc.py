"""BLIP and Avalanche's EWC on the same stream, network, epochs and batches, as ratios to a plain PyTorch loop.

    python benchmarks/avalanche_ewc.py [stream] [epochs] [rounds] [strength]     # needs the extra avalanche

Every side trains all tasks from scratch in each round, and the sides take turns. By hand batches are cut from tensors,
in Avalanche a DataLoader collects them sample by sample: so its own plain loop, Naive, is a second measure. Strength
is Avalanche's ewc_lambda; nothing here is tuned, neither that nor BLIP's budget. Times are those of one thread on the
processor.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import torchvision_operators
from bitfreeze import BLIP
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.streams import make_stream
from measure import best_processor_seconds

torchvision_operators.declare()

from avalanche.benchmarks import nc_benchmark  # noqa: E402 - torchvision's operators must be declared before
from avalanche.models import MultiTaskModule  # noqa: E402
from avalanche.training import EWC, Naive  # noqa: E402

from bitfreeze.integrations.avalanche import BLIPPlugin  # noqa: E402

BATCH, RATE = 32, 0.1


@dataclass
class Data:
    """All tasks, ready for a network: training and test images and labels of each."""

    shape: tuple[int, ...]
    classes: list[int]
    train: list[tuple[Tensor, Tensor]]
    test: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, name: str) -> "Data":
        stream = make_stream(name)
        loaded = [stream.load(task) for task in stream.tasks]
        every = slice(None)
        return cls(
            stream.shape, [task.classes for task in stream.tasks],
            [data.train.take(every) for data in loaded], [data.test.take(every) for data in loaded],
        )  # fmt: skip

    def network(self) -> MultiHead:
        torch.manual_seed(0)
        return build_network({"kind": "mlp", "hidden": [400, 400]}, self.shape, self.classes)

    def experiences(self) -> list[object]:
        sets = []
        for x, y in self.train:
            sets.append(TensorDataset(x, y))
            sets[-1].targets = y
        return nc_benchmark(
            sets, sets, len(sets), task_labels=True, shuffle=False, one_dataset_per_exp=True,
            class_ids_from_zero_in_each_exp=True,
        ).train_stream  # fmt: skip


class ForAvalanche(MultiTaskModule):
    """The same network, which takes a task label for each sample; a batch has one task here."""

    def __init__(self, net: MultiHead) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
        return self.net(x, int(task_labels[0]))


Matrix = list[list[float]]  # the accuracy on each task after each task


def by_hand(data: Data, epochs: int, *, protect: bool, evaluate: bool = False) -> Matrix:
    net = data.network()
    blip = BLIP(net, watch=net.backbone)
    attachment = blip.attach() if protect else None
    matrix = []
    for task, (x, y) in enumerate(data.train):
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
        for _ in range(epochs):
            for rows in torch.randperm(len(y)).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(net(x[rows], task), y[rows]).backward()
                optimizer.step()
        if protect:
            blip.consolidate(zip(x.split(500), y.split(500), strict=True), lambda some, task=task: net(some, task))
        if evaluate:
            matrix.append(accuracies(net, data))
    if attachment:
        attachment.remove()
    return matrix


def in_avalanche(
    data: Data, epochs: int, kind: type, plugins: str = "", evaluate: bool = False, **options: float
) -> Matrix:
    net = data.network()
    model = ForAvalanche(net)
    strategy = kind(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=RATE), criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH, train_epochs=epochs, evaluator=None,
        plugins=[BLIPPlugin(BLIP(model, watch=net.backbone))] if plugins == "blip" else [], **options,
    )  # fmt: skip
    matrix = []
    for experience in data.experiences():
        strategy.train(experience)
        if evaluate:
            matrix.append(accuracies(net, data))
    return matrix


@torch.no_grad()
def accuracies(net: MultiHead, data: Data) -> list[float]:
    return [100 * (net(x, task).argmax(1) == y).float().mean().item() for task, (x, y) in enumerate(data.test)]


def sides(data: Data, epochs: int, strength: float) -> dict[str, Callable[..., Matrix]]:
    return {
        "plain loop": partial(by_hand, data, epochs, protect=False),
        "plain loop with BLIP": partial(by_hand, data, epochs, protect=True),
        "Avalanche, Naive": partial(in_avalanche, data, epochs, Naive),
        "Avalanche, Naive with BLIPPlugin": partial(in_avalanche, data, epochs, Naive, plugins="blip"),
        f"Avalanche, EWC of strength {strength:g}": partial(in_avalanche, data, epochs, EWC, ewc_lambda=strength),
    }


def main(name: str = "digits5", epochs: str = "20", rounds: str = "5", strength: str = "100") -> None:
    torch.set_num_threads(1)
    runs = sides(Data.of(name), int(epochs), float(strength))
    times = best_processor_seconds(runs, int(rounds))
    print(
        f"{name}, MLP 400-400, {epochs} epochs a task, batch {BATCH}, SGD {RATE}; torch {torch.__version__}, 1 thread\n"
    )
    print("| what | time / plain loop | time / Avalanche's Naive | ACC | BWT |\n| --- | --- | --- | --- | --- |")
    for side, run in runs.items():
        matrix = run(evaluate=True)
        last, tasks = matrix[-1], len(matrix)
        change = sum(last[t] - matrix[t][t] for t in range(tasks - 1)) / (tasks - 1)
        ratios = [times[side] / times[other] for other in ("plain loop", "Avalanche, Naive")]
        print(f"| {side} | {ratios[0]:.2f} | {ratios[1]:.2f} | {sum(last) / tasks:.2f} | {change:.2f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
