"""What BLIP along directions costs: a training step, the end of a task, and the bytes of its state.

    python benchmarks/directions.py
    python benchmarks/directions.py --processor-time    # where the machine is busy with other things

prints a table. Both sides of a ratio are interleaved in one run, best of several. A step is the mean over twice as many
steps as lie between two clamps along all directions, so that rare clamps are in it.
"""

import copy
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import measure
import plain_networks as networks
from bitfreeze import BLIP, Rules
from measure import ratio, seconds

STEPS = 2 * Rules.directions().every


def wide_linear() -> nn.Module:
    """A layer of 2048 x 2048 and a head."""
    return nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))


def measure_step(model: nn.Module, x: Tensor, y: Tensor, rounds: int) -> float:
    """Step with BLIP / without, once the pace of its clamps has settled."""
    plain = copy.deepcopy(model)
    blip = BLIP(model, watch=watched(model))
    blip.consolidate([(x, y)])
    optimizers = {net: torch.optim.SGD(net.parameters(), lr=0.01) for net in (model, plain)}

    def train(net: nn.Module, steps: int = STEPS) -> None:
        for _ in range(steps):
            optimizers[net].zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizers[net].step()

    with blip.attach():
        return ratio(lambda: train(model), lambda: train(plain), rounds)[0]


def measure_end(model: nn.Module, x: Tensor, y: Tensor, batch: int, rounds: int) -> tuple[float, float]:
    """End of the second task / forward and backward pass of the same samples; bytes of state a parameter."""
    blip = BLIP(model, watch=watched(model))
    batches = list(zip(x.split(batch), y.split(batch), strict=True))
    blip.consolidate(batches)
    state = copy.deepcopy(blip.state_dict())

    def passes() -> None:
        for inputs, labels in batches:
            model.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()

    def end() -> float:
        blip.load_state_dict(state)
        return seconds(lambda: blip.consolidate(batches))

    best = min(end() for _ in range(rounds)), min(seconds(passes) for _ in range(rounds))
    held = sum(parameter.numel() for part in watched(model) for parameter in part.parameters())
    return best[0] / best[1], blip.nbytes() / held


def watched(model: nn.Module) -> list[nn.Module]:
    """All layers but the last, which is the head."""
    return [layer for layer in model.children() if any(True for _ in layer.parameters())][:-1]


def main() -> None:
    warnings.filterwarnings("ignore", "no watched weight has changed")
    warnings.filterwarnings("ignore", ".* keep running statistics")
    if "--processor-time" in sys.argv:
        measure.clock = time.process_time
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits, pictures, features = torch.rand(4000, 784), torch.randn(2000, 3, 32, 32), torch.randn(64, 2048)
    classes = torch.randint(10, (4000,))
    print(f"torch {torch.__version__}, 1 thread, {torch.backends.cpu.get_cpu_capability()}\n")
    print("| what | ratio | reach |\n| --- | --- | --- |")
    for name, model, x, reach, rounds in (
        ("AlexNet 64/128/256/2048/2048, batch 32", networks.alexnet(), pictures[:32], 1.10, 4),
        ("MLP 784-1200-10, batch 64", networks.mlp(), digits[:64], 1.20, 10),
        ("linear layer 2048 x 2048, batch 32", wide_linear(), features[:32], 1.30, 8),
    ):
        print(f"| step with / without: {name} | {measure_step(model, x, classes[: len(x)], rounds):.2f} | {reach} |")
    for name, model, x, batch in (
        ("AlexNet, 2,000 samples, batch 100", networks.alexnet(), pictures, 100),
        ("MLP, 4,000 samples, batch 500", networks.mlp(), digits, 500),
        ("like EfficientNet-Lite0, 500 samples of 64x64, batch 50", networks.mobile(), torch.randn(500, 3, 64, 64), 50),
    ):
        cost, size = measure_end(model, x, classes[: len(x)], batch, rounds=2)
        print(f"| end of a task / forward and backward of the same samples: {name} | {cost:.2f} | 2.5 |")
        print(f"| bytes of state a parameter: {name} | {size:.2f} | 9 |")


if __name__ == "__main__":
    main()
