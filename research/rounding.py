"""How many bits rounding each gain up has added: `python research/rounding.py RUN`, of a run that has kept its bits.

For each task, the bits of a parameter that are frozen, and the whole bits of all gains so far together, which is what
`method.rounding=total` would have frozen in the same networks. Means over all parameters.
"""

import sys
from collections.abc import Iterator

import numpy as np

from bitfreeze.lab.results.bit_history import BitHistory
from bitfreeze.lab.results.stored import find_runs
from bitfreeze.lab.runs.folder import runs_root


def compare(bits: BitHistory) -> Iterator[tuple[float, float]]:
    """After each task: (frozen, rounded up together)."""
    so_far = {name: np.zeros(bits.shape(name), np.float32) for name in bits.names}
    most = {name: gains.copy() for name, gains in so_far.items()}
    entries = sum(gains.size for gains in so_far.values())
    for task in range(bits.tasks):
        for name, gains in so_far.items():
            gains += bits.gain(name, task)
            np.maximum(most[name], gains, out=most[name])
        together = sum(float(np.ceil(gains).clip(0, bits.depth).sum()) for gains in most.values())
        yield bits.capacity(bits.names, task) * bits.depth, together / entries


def main() -> None:
    for run in find_runs(runs_root(), sys.argv[1:]):
        if run.bits is not None:
            print(run.title)
            for task, (frozen, together) in enumerate(compare(run.bits), 1):
                print(f"  after {task}: {frozen:.2f} bits a parameter frozen, {together:.2f} by the total")


if __name__ == "__main__":
    main()
