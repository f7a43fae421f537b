"""What it takes to protect a large model and to hold LoRA adapters on it: arithmetic, and one layer a shape measured.

    python benchmarks/adapters.py

The shapes are those of Llama 3.2 1B and Llama 3.1 8B. Of each shape of layer one is measured on this machine, with
random directions, one thread; the sums over layers are products. Nothing as large as the models is built.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from bitfreeze.blip.low_rank import LowRankLayer, Term
from bitfreeze.blip.turning import Turning

RANK, TOKENS = 16, 8192  # of adapters, and of a step


class Model(NamedTuple):
    blocks: int
    shapes: tuple[tuple[int, int, int], ...]  # outputs, inputs, number in a block


MODELS = {
    "1 B": Model(16, ((2048, 2048, 2), (512, 2048, 2), (8192, 2048, 2), (2048, 8192, 1))),
    "8 B": Model(32, ((4096, 4096, 2), (1024, 4096, 2), (14336, 4096, 2), (4096, 14336, 1))),
}


def layers(model: Model) -> int:
    return model.blocks * sum(count for *_, count in model.shapes)


def weights(model: Model) -> int:
    return model.blocks * sum(o * i * count for o, i, count in model.shapes)


def file_bytes(model: Model, k: int) -> int:
    """Directions and the Fisher along them in half precision; energies and sums over rows and columns in float32."""
    each = [count * (2 * k * (o + i) + 2 * k * k + 4 * (2 * k + o + i)) for o, i, count in model.shapes]
    return model.blocks * sum(each)


def dense_bytes(model: Model, k: int) -> int:
    """State of a BLIP while all weights are trained: centre, Fisher of entries in half precision, directions."""
    return 6 * weights(model) + 2 * file_bytes(model, k)


def clamp_flops(model: Model, k: int) -> float:
    """One hold of all adapters: coordinates, and least squares in three sweeps."""
    each = [count * (4 * RANK * k * (o + i) + 3 * 2 * (k + RANK) ** 2 * RANK**2) for o, i, count in model.shapes]
    return float(model.blocks * sum(each))


def step_flops(model: Model) -> float:
    """Forward and backward through a base that stays: 4 a weight and token."""
    return 4.0 * weights(model) * TOKENS


def orthonormal(n: int, k: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(n, k))[0][None]


def layer(o: int, i: int, k: int) -> LowRankLayer:
    """A layer whose Fisher falls with the directions, as measured ones do."""
    fall = torch.arange(1, k + 1) ** -1.0
    turning = Turning(
        orthonormal(i, k), orthonormal(o, k), torch.ones(1, k), torch.ones(1, k), 1e3 * torch.outer(fall, fall)[None]
    )
    return LowRankLayer(turning, torch.full((o,), 1 / o), torch.full((i,), 1 / i), prior=1e-6)


def seconds(work: Callable[[], object], times: int = 3) -> float:
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def hold_seconds(o: int, i: int, k: int) -> float:
    """A hold after a step that has left the intervals."""
    held = layer(o, i, k)
    term = Term(torch.randn(RANK, i) / i**0.5, torch.randn(o, RANK) * 0.01, 2.0)
    before = term.down.clone()

    def once() -> None:
        term.down.copy_(before)
        held.hold_([term], 1.0)

    return seconds(once)


def directions_seconds(width: int) -> float:
    """Eigenvectors of a second moment; a side wider than 4,096 has a sample of 2,048 rows instead."""
    rows = torch.randn(2048, min(width, 2048))
    matrix = rows.T @ rows
    return seconds(lambda: torch.linalg.eigh(matrix), 1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| model | directions | file | adapters held, in memory | all weights held, in memory | hold / step, flops |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, model in MODELS.items():
        for k in (64, 256):
            sizes = (file_bytes(model, k), 2 * file_bytes(model, k), dense_bytes(model, k))
            cells = [f"{size / 1e9:.2f} GB" for size in sizes]
            share = 100 * clamp_flops(model, k) / step_flops(model)
            print(f"| {name} | {k} | {' | '.join(cells)} | {share:.2f} % |")
    print("\n| model | directions | hold of all adapters, seconds of one thread |")
    print("| --- | --- | --- |")
    for name, model in MODELS.items():
        for k in (64, 256):
            total = model.blocks * sum(count * hold_seconds(o, i, k) for o, i, count in model.shapes)
            print(f"| {name} | {k} | {total:.1f} ({layers(model)} layers) |", flush=True)
    print(f"\neigenvectors of one side that is 2,048 wide: {directions_seconds(2048):.1f} s of one thread")


if __name__ == "__main__":
    main()
