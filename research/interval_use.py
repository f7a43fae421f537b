"""How far tasks went within their intervals: `python research/interval_use.py RUN`, of a run that has kept its bits.

For each task after the first and each layer, the bits that its weights had frozen when the task began, and the share of
weights that ended in the outer half of their interval. Weights that the interval does not hinder mostly end near where
they began (a share near 0); were they spread evenly in it, it would be a half; those that it stops lie at its ends.
"""

import sys
from collections.abc import Iterator

import numpy as np

from bitfreeze.lab.results.bit_history import BitHistory
from bitfreeze.lab.results.stored import find_runs
from bitfreeze.lab.runs.folder import runs_root


def outer_share(bits: BitHistory, name: str, task: int) -> float:
    """Of the entries of a tensor that lie, after a task, more than half the radius from where it began."""
    value = bits.centre(name, task) + bits.offset(name, task) / 127 * bits.radius(name, task)
    moved = np.abs(value - bits.centre(name, task - 1))
    return float((moved > bits.radius(name, task - 1) / 2).mean())


def uses(bits: BitHistory) -> Iterator[list[tuple[str, float, float]]]:
    """For each task after the first, of each weight: (its name, bits frozen before, share in the outer half)."""
    for task in range(1, bits.tasks):
        yield [(name, float(bits.bits(name, task - 1).mean()), outer_share(bits, name, task)) for name in bits.weights]


def main() -> None:
    for run in find_runs(runs_root(), sys.argv[1:]):
        if run.bits is None or not run.bits.has_values:
            continue
        print(run.title)
        for task, layers in zip(run.tasks[1:], uses(run.bits), strict=False):
            told = ", ".join(f"{name} {frozen:.1f} bits {share:.0%}" for name, frozen, share in layers)
            print(f"  {task}: {told}")


if __name__ == "__main__":
    main()
