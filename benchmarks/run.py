"""Prints the benchmark table: ``make bench``. Takes about ten minutes on two cores; the last part needs MNIST's files.

Each row is a ratio measured in this run, best of several interleaved rounds. The last column is another way to do the
same, measured in the same run: intervals derived from centre and bits at each step, or gradients by torch.func. The
second table is MNIST-5 by the public code's protocol (released.py) / by ours, in parts and whole.
"""

import platform
import sys

import torch

import plain_networks as networks
from convnets import measure_alexnet, measure_resnet18
from fisher_cost import measure_fisher, measure_torch_func
from growth import measure_bytes, measure_growth
from loop import measure_loop
from protocol import PARTS, measure_protocol
from step import measure_step


def main() -> None:
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, "
          f"Python {platform.python_version()}\n")  # fmt: skip
    _row("what", "ratio", "reach", "the other way")
    _row("---", "---", "---", "---")
    digits, pictures, large = torch.randn(1000, 784), torch.randn(1000, 3, 32, 32), torch.randn(96, 3, 84, 84)
    tokens = torch.randint(1000, (256, 64))
    classes = torch.randint(5, (1000,))

    ours, derived = measure_step(networks.mlp(), digits[:64], classes[:64], steps=100, rounds=12)
    _row("training step with BLIP / without: MLP 784-1200-10, batch 64", f"{ours:.2f}", "1.15", f"{derived:.2f}")
    ours, derived = measure_step(networks.alexnet(), pictures[:32], classes[:32], steps=6, rounds=10)
    _row("the same: AlexNet 64/128/256/2048/2048, batch 32", f"{ours:.2f}", "1.05", f"{derived:.2f}")

    ours = measure_fisher(networks.mlp(), digits, classes, batch=500, rounds=40)
    func = measure_torch_func(networks.mlp(), digits, classes, batch=500, rounds=2)
    _row("Fisher of 1,000 samples / forward+backward: MLP, batch 500", f"{ours:.2f}", "1.3", f"{func:.0f}")
    ours = measure_fisher(networks.mlp(), digits.repeat(8, 1), classes.repeat(8), batch=500, rounds=6)
    _row("the same, 8,000 samples (as many as the released code's)", f"{ours:.2f}", "", "")
    ours = measure_fisher(networks.alexnet(), pictures, classes, batch=100, rounds=5)
    func = measure_torch_func(networks.alexnet(), pictures[:100], classes[:100], batch=100, rounds=1)
    _row("the same: AlexNet, batch 100", f"{ours:.2f}", "1.6", f"{func:.0f}")
    ours = measure_fisher(networks.resnet18(), large, classes[:96], batch=32, rounds=3)
    _row("the same, 96 samples: ResNet-18 on 84x84, batch 32", f"{ours:.2f}", "4", "")
    ours = measure_fisher(networks.Transformer(), tokens, classes[:256], batch=64, rounds=3)
    _row("the same, 256 samples: 4-layer transformer on 64 tokens, batch 64", f"{ours:.2f}", "4", "")

    ours = measure_alexnet(rounds=10)
    _row("training step of the laboratory's AlexNet / of torch.nn's layers in the paper's order", f"{ours:.2f}", "", "")
    ours = measure_resnet18(rounds=5)
    _row("the same: ResNet-18 on 84x84", f"{ours:.2f}", "", "")

    saved, held = measure_bytes()
    _row("bytes of saved state a parameter", f"{saved:.2f}", "9", "")
    _row("bytes a parameter while training", f"{held:.2f}", "17", "")
    size, time = measure_growth()
    _row("state after task 200 / after task 1", f"{size:.2f}", "1", "")
    _row("time of a task's end at task 200 / at task 2", f"{time:.2f}", "1", "")

    ours = measure_loop("ft", rounds=20)[0]
    _row("epoch of the laboratory's loop / of one by hand: MLP 784-1200, batch 64", f"{ours:.2f}", "1.05", "")
    ours = measure_loop("blip", rounds=20)[0]
    _row("the same with BLIP / by hand without", f"{ours:.2f}", "", "")
    _protocols()


def _protocols() -> None:
    shares = measure_protocol()
    print()
    _row("MNIST-5 with BLIP", "public protocol / ours", "reach", "ours, s", "public protocol, s")
    _row("---", "---", "---", "---", "---")
    for part in PARTS:
        _row(part, f"{shares.ratio(part):.1f}", "", f"{shares.ours[part]:.2f}", f"{shares.released[part]:.2f}")
    for epochs in (3, 10, 20, 200):
        _row(f"whole run, {epochs} epochs a task, from the parts", f"{shares.whole(epochs):.1f}", "5", "", "")


def _row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
