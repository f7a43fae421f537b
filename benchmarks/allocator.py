"""What a step of AlexNet costs by where its memory comes from: `python benchmarks/allocator.py`, a minute.

glibc gives the memory of large gradients back to the system after each step and asks for it again in the next, page by
page. TUNABLES make it keep that memory, in large pages. They are read when a process starts, so that each side is
measured in processes of its own, one after the other; means of processor time, the best of several processes.
"""

import os
import subprocess
import sys
import time

import torch

from convnets import our_alexnet, steps_of

TUNABLES = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"  # bytes
)
STEPS, ROUNDS = 60, 5


def measure_here() -> float:
    """Processor milliseconds of a step in this process, where large pieces have come and gone before."""
    torch.set_num_threads(1)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(20, (32,))
    train = steps_of(our_alexnet(), x, y, STEPS)
    train()
    started = time.process_time()
    train()
    return 1000 * (time.process_time() - started) / STEPS


def measure_in_child(tunables: str) -> float:
    changed = {**os.environ, "GLIBC_TUNABLES": tunables}
    return float(subprocess.check_output([sys.executable, __file__, "here"], env=changed, text=True))


def main() -> None:
    pairs = [(measure_in_child(""), measure_in_child(TUNABLES)) for _ in range(ROUNDS)]
    usual, kept = (min(column) for column in zip(*pairs, strict=True))
    print(f"{usual:.1f} ms a step; with GLIBC_TUNABLES={TUNABLES} {kept:.1f} ms, {kept / usual:.2f} of it")


if __name__ == "__main__":
    print(measure_here()) if "here" in sys.argv else main()
