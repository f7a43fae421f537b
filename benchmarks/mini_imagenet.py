"""What 20-split mini-ImageNet costs: `python benchmarks/mini_imagenet.py`, about half an hour on one core.

Its pictures may not be passed on, so two of its tasks are learned from made ones of its size, by each method of the
paper's table and with both networks, through the same command as the real ones. Steps, task ends and memory are
measured, ends on a tenth of a real task's samples. What twenty tasks of 200 epochs would take is arithmetic from the
steps: an upper bound, for the schedule may end a task before (task ends and tests add a hundredth or two). On a GPU,
the operations of a fine-tuning step at an assumed rate, times what the method's step takes more here. A step is one of
the second task; from the fifth on A-GEM's would draw 256 pictures from its memory, where that holds 65 here, so its row
is a lower bound.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from bitfreeze.lab.data import DataUnverified
from bitfreeze.lab.methods import Method, methods
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.runs.config import Config, make_config
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.streams.mini_imagenet import class_order
from bitfreeze.lab.tasks import Task, TaskData

TASKS, EPOCHS, EACH = 2, 3, 60
CHANGES = [f"stream.tasks={TASKS}", f"training.epochs={EPOCHS}"]
RESNET = [*CHANGES, "network.kind=resnet18"]
ROWS = [
    *((method, "", CHANGES) for method in ("ft", "ewc", "lwf", "agem", "hat", "acl", "acl_r")),
    ("blip", "released", CHANGES),
    *((method, "", RESNET) for method in ("ft", "ewc", "lwf", "agem")),
    ("blip", "released_resnet", CHANGES),
]
FULL_TASKS, FULL_EPOCHS, FULL_SAMPLES = 20, 200, 2450
GPU_OPERATIONS = 5e12  # a second: a quarter of what an A100 promises in float32 (19.5e12, its data sheet)


def make_pictures(folder: Path) -> None:
    """A folder for each class; those of the first tasks hold waves of a direction and colour of their own in noise."""
    random = np.random.default_rng(0)
    learned = set(np.concatenate(class_order(0)[:TASKS]).tolist())
    rows, columns = np.mgrid[:84, :84] / 84
    for label in range(100):
        place = folder / "mini_imagenet" / "images" / f"n{label:08d}"
        place.mkdir(parents=True)
        across, down = random.uniform(-30, 30, 2)
        colour = random.uniform(0.2, 1, 3)
        for k in range(EACH if label in learned else 6):
            waves = 1 + np.sin(across * columns + down * rows + random.uniform(0, 6))
            noisy = 100 * waves[..., None] * colour + random.normal(0, 20, (84, 84, 3))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(place / f"{k}.png")


def measure_here(config: Config) -> dict[str, float]:
    """A run in this process: processor seconds of a step and of a task's end, bytes at the peak, and accuracy."""
    torch.set_num_threads(1)
    marks: list[tuple[str, float]] = []
    ends = time_ends(methods[config.method])
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataUnverified)
        listener = [lambda event: marks.append((event.name, time.process_time()))]
        found = run(config, Path(root), listener, checkpoint_seconds=1e9, keep_bits=False)
    pairs = list(pairwise(marks))
    epochs = [later[1] - earlier[1] for earlier, later in pairs if earlier[0] == later[0] == "epoch"]
    last = epochs[1 - EPOCHS :]  # of the second task: in the first some methods have nothing to do yet
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    step = min(last) / _steps(config, _samples())
    return {"step": step, "end": ends[-1], "peak": peak, "acc": found.acc, "operations": operations(config)}


def time_ends(method: type[Method]) -> list[float]:
    """Processor seconds of each end of a task from now on: the method's own, without checkpoint and tests."""
    found: list[float] = []
    plain = method.end_task

    def timed(self: Method, task: Task, data: TaskData) -> None:
        start = time.process_time()
        plain(self, task, data)
        found.append(time.process_time() - start)

    method.end_task = timed
    return found


def _samples() -> int:
    train = 5 * EACH * 5 // 6
    return train - int(0.02 * train)


def _steps(config: Config, samples: int) -> int:
    return -(-samples // config.settings.batch)


def operations(config: Config) -> float:
    """Multiplications and additions, forwards and backwards, of a step of fine-tuning."""
    net = build_network(config.network, (3, 84, 84), [5] * TASKS)
    x = torch.randn(config.settings.batch, 3, 84, 84)
    with FlopCounterMode(display=False) as counter:
        net.heads[0](net.backbone(x)).sum().backward()
    return float(counter.get_total_flops())


def describe(config: Config, found: dict[str, float], slower: float) -> dict[str, str]:
    """A row of the table; ``slower``: what a sample costs by what it costs fine-tuning."""
    steps = FULL_TASKS * FULL_EPOCHS * _steps(config, FULL_SAMPLES)
    return {
        "method": f"{config.method} {config.variant}".strip(),
        "network": "its own" if methods[config.method].record.own_networks else str(config.network["kind"]),
        "batch": str(config.settings.batch),
        "ms a step": f"{1000 * found['step']:.0f}",
        "s at an end": f"{found['end']:.1f}",
        "peak MB": f"{found['peak'] / 1e6:.0f}",
        "ACC": f"{found['acc']:.0f}",
        "hours of 20 tasks here": f"{steps * found['step'] / 3600:.0f}",
        "hours on a GPU": f"{steps * slower * found['operations'] / GPU_OPERATIONS / 3600:.1f}",
    }


def main() -> None:
    print(f"torch {torch.__version__}, 1 thread, {torch.backends.cpu.get_cpu_capability()}")
    print(f"{TASKS} tasks of {_samples()} made pictures, {EPOCHS} epochs\n")
    plain: dict[object, float] = {}  # seconds a sample of fine-tuning, by network: the first row of each
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder))
        for k, (method, variant, changes) in enumerate(ROWS):
            config = make_config("mini_imagenet20", method, variant, changes=changes)
            command = [sys.executable, __file__, str(k)]
            child = subprocess.run(
                command, env={"BITFREEZE_DATA": folder}, stdout=subprocess.PIPE, text=True, check=True
            )
            found = json.loads(child.stdout.splitlines()[-1])
            sample = found["step"] / config.settings.batch
            row = describe(config, found, sample / plain.setdefault(config.network["kind"], sample))
            if k == 0:
                print("| " + " | ".join(row) + " |\n|" + " --- |" * len(row))
            print("| " + " | ".join(row.values()) + " |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        method, variant, changes = ROWS[int(sys.argv[1])]
        print(json.dumps(measure_here(make_config("mini_imagenet20", method, variant, changes=changes))))
    else:
        main()
