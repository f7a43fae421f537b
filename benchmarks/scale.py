"""Prints how cost grows with parameters, samples, tasks and ranks: ``python benchmarks/scale.py``. A few minutes.

Times are ratios of processor time, which hold on a busy machine too, measured side by side in this run; the best of
several. Peaks of memory are those of a process of its own. What one billion parameters over 100 tasks would need
follows by arithmetic: docs/how-to/scale.md.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import measure
from bitfreeze import BLIP
from fisher_cost import measure_fisher
from growth import measure_growth
from step import measure_step

WIDTHS, SAMPLES = (250, 500, 1000, 2000), (500, 1000, 2000, 4000)


def mlp(width: int, layers: int = 1) -> nn.Module:
    torch.manual_seed(0)
    inner = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), *inner, nn.Linear(width, 10))


def entries(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def by_parameters(rounds: int) -> None:
    x, y = torch.randn(1000, 784), torch.randint(10, (1000,))
    _row("parameters", "step with BLIP / without", "Fisher / forward+backward", "state, bytes each", "while training")
    _row(*["---"] * 5)
    for width in WIDTHS:
        model = mlp(width)
        step, _ = measure_step(model, x[:64], y[:64], steps=10, rounds=2 * rounds)
        fisher = measure_fisher(mlp(width), x, y, batch=500, rounds=rounds)
        blip = BLIP(mlp(width))
        blip.consolidate([x[:64]])
        saved = blip.nbytes()
        blip.clamp_()
        sizes = (f"{size / entries(model):.2f}" for size in (saved, blip.nbytes(cache=True)))
        _row(f"{entries(model):,}", f"{step:.2f}", f"{fisher:.2f}", *sizes)


def by_samples(rounds: int) -> None:
    model, x = mlp(500), torch.randn(max(SAMPLES), 784)
    times: dict[int, list[float]] = {count: [] for count in SAMPLES}
    for _ in range(rounds + 1):
        for count in SAMPLES:
            blip, started = BLIP(model, prior=1e-8), time.process_time()
            blip.consolidate(x[:count].split(500))
            times[count].append(time.process_time() - started)
    _row("samples", f"processor time of a task's end / that of {SAMPLES[0]} samples")
    _row("---", "---")
    for count in SAMPLES:
        _row(f"{count:,}", f"{min(times[count][1:]) / min(times[SAMPLES[0]][1:]):.2f}")


def by_tasks() -> None:
    size, duration = measure_growth(tasks=100, window=10)
    _row("at task 100 / at the first", "ratio")
    _row("---", "---")
    _row("state", f"{size:.2f}")
    _row("time of a task's end", f"{duration:.2f}")


def peak(budget: bool) -> float:
    """Bytes a parameter that consolidate() takes at most, those of the new state among them."""
    model = mlp(1000, layers=16)
    x = torch.randn(64, 784)
    nn.functional.cross_entropy(model(x), torch.zeros(64, dtype=torch.int64)).backward()
    model.zero_grad()
    blip = BLIP(model, prior=None if budget else 1e-8)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    blip.consolidate(x.split(32))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / entries(model)


def peaks() -> None:
    _row("task's end at its peak, bytes a parameter beyond the model", "")
    _row("---", "---")
    for name, budget in (("with a prior given", "0"), ("first task, solving for the budget", "1")):
        command = [sys.executable, __file__, "peak", budget]
        _row(name, subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.strip())


def rank(index: int, count: int, meeting: str, rounds: int) -> None:
    """One rank: the end of a task with 4,000 samples on all ranks together, and on each alone with all of them."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=meeting, rank=index, world_size=count, timeout=timedelta(seconds=200)
    )  # fmt: skip
    model, x = mlp(500), torch.randn(4000, 784, generator=torch.Generator().manual_seed(0))
    best = {"together": float("inf"), "alone": float("inf")}
    for _ in range(rounds + 1):
        for way in best:
            together = way == "together"
            data = (x[index::count] if together else x).split(500)
            dist.barrier()
            started = time.process_time()
            BLIP(model, prior=1e-8).consolidate(data, distributed=together)
            best[way] = min(best[way], time.process_time() - started)
    if index == 0:
        print(f"{best['together'] / best['alone']:.2f}")
    dist.destroy_process_group()


def by_ranks(rounds: int, count: int = 2) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = [str(count), f"file://{folder}/meeting", str(rounds)]
        processes = [
            subprocess.Popen([sys.executable, __file__, "rank", str(k), *words], stdout=subprocess.PIPE, text=True)
            for k in range(count)
        ]
        try:
            said = [process.communicate(timeout=300)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    _row("ranks", "processor time of each at a task's end, 4,000 samples / of one alone")
    _row("---", "---")
    _row(str(count), said[0].strip())


def _row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main(rounds: int = 6) -> None:
    torch.set_num_threads(1)
    measure.clock = time.process_time
    for part in (lambda: by_parameters(rounds), lambda: by_samples(rounds), by_tasks, peaks, lambda: by_ranks(rounds)):
        part()
        print()


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        torch.set_num_threads(1)
        print(f"{peak(sys.argv[2] == '1'):.0f}")
    elif sys.argv[1:2] == ["rank"]:
        rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    else:
        main()
