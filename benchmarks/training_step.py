"""What a training step of the picture networks costs in the laboratory, by precision and by where memory comes from.

`python benchmarks/training_step.py [alexnet|resnet18]`, ten minutes: processor milliseconds of a step with one thread,
the best of several processes. Plain torch is a loop by hand over the layers of torch.nn in float32. The laboratory's
steps are its own loop, with the pictures of each batch taken from bytes. Each side has processes of its own, in turn,
because memory that a process has once got from the system decides what later steps cost.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.optim import SGD

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.runs.freed_memory import keep_freed_memory
from bitfreeze.lab.tasks import Split, Task, TaskData
from bitfreeze.lab.training import Settings, Training
from convnets import our_alexnet, our_resnet18, plain_alexnet, plain_resnet18

ALEXNET = {"channels": [128, 256, 512], "units": [2048, 2048], "dropout": [0.2, 0.2]}  # of the preset alt_cifar
SIZES, CLASSES = {"alexnet": 32, "resnet18": 84}, {"alexnet": 20, "resnet18": 5}
SIDES = {
    "plain torch.nn, float32": ("plain", "float32", False),
    "plain torch.nn, bf16": ("plain", "bf16", False),
    "laboratory, float32, memory given back": ("laboratory", "float32", False),
    "laboratory, float32": ("laboratory", "float32", True),
    "laboratory, bf16": ("laboratory", "bf16", True),
}
BATCH = 32
STEPS, PROCESSES = {"alexnet": 20, "resnet18": 4}, {"alexnet": 4, "resnet18": 2}  # a step of ResNet-18 takes a second


def pictures(network: str) -> Split:
    torch.manual_seed(0)
    size, count = SIZES[network], BATCH * STEPS[network]
    x = torch.randint(256, (count, 3, size, size), dtype=torch.uint8)
    return Split(x, torch.randint(CLASSES[network], (count,)), (0.5,), (0.25,))


def plain_epoch(network: str, precision: str, data: Split) -> Callable[[], None]:
    """Steps by hand over float pictures that are there already."""
    plain = plain_alexnet(our_alexnet(**ALEXNET)) if network == "alexnet" else plain_resnet18(our_resnet18())
    x, y = data.take(slice(None))
    optimizer = SGD(plain.parameters(), lr=0.01)

    def epoch() -> None:
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = F.cross_entropy(plain(x[rows]), y[rows])
            loss.backward()
            optimizer.step()

    return epoch


def laboratory_epoch(network: str, precision: str, data: Split) -> Callable[[], None]:
    """An epoch of fine-tuning, without the validation."""
    size, task = SIZES[network], Task(0, "made", CLASSES[network])
    options = {"kind": network, **(ALEXNET if network == "alexnet" else {})}
    method = make_method("ft", {})
    net = method.build(build_network(options, (3, size, size), [task.classes]), (task,))
    settings = Settings(lr=0.01, batch=BATCH, epochs=10**6, patience=10**6, precision=precision)
    training = Training(method, net, task, TaskData(data, data, data), settings, seed=0)
    return lambda: training._train_epoch() and None


def measure_here(network: str, side: str) -> float:
    """Processor milliseconds of a step in this process, after two epochs that warm it up."""
    torch.set_num_threads(1)
    loop, precision, keeps = SIDES[side]
    if keeps:
        assert keep_freed_memory()
    make = plain_epoch if loop == "plain" else laboratory_epoch
    epoch = make(network, precision, pictures(network))
    epoch(), epoch()
    started = time.process_time()
    epoch()
    return 1000 * (time.process_time() - started) / STEPS[network]


def measure_in_child(network: str, side: str) -> float:
    return float(subprocess.check_output([sys.executable, __file__, network, side], text=True))


def main(networks: list[str]) -> None:
    for network in networks:
        rounds = [{side: measure_in_child(network, side) for side in SIDES} for _ in range(PROCESSES[network])]
        best = {side: min(times[side] for times in rounds) for side in SIDES}
        print(f"\n| {network}, batch {BATCH} | ms a step | of plain torch in float32 |\n| --- | --- | --- |")
        for side, found in best.items():
            print(f"| {side} | {found:.1f} | {found / best['plain torch.nn, float32']:.2f} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(measure_here(*sys.argv[1:]))
    else:
        main(sys.argv[1:] or list(SIZES))
