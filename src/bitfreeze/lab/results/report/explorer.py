"""Frozen bits for the page's explorer: of large tensors every so many rows and columns, so that the page stays small.

A cell is always a real parameter, never a mean. A tensor is sent as bytes, compressed: first the frozen bits after each
task, cell by cell, then eight times the information gain, then where in its interval the parameter lies (only if
kept), then the change of the centre since the task before, its four bytes apart.
"""

import base64
import zlib
from typing import Any

import numpy as np

from ..bit_history import Array, BitHistory
from ..stored import StoredRun

MOST, LEAST = 128, 16  # rows and columns of a tensor that are shown at most, and that are worth showing
VECTOR_WIDTH = 64


def explorer_data(runs: list[StoredRun], space: int) -> list[dict[str, Any]]:
    """For each run what the page needs, all together no more than about ``space`` bytes; nothing if that cannot be."""
    side = MOST
    while side >= LEAST:
        found = [_run(run, run.bits, side) for run in runs if run.bits is not None]
        size = sum(_size(tensor) for run in found for tensor in run["tensors"])
        if size <= space:
            return found
        side = min(side - 1, int(0.97 * side * (max(0, space) / size) ** 0.5))
    return []


def _size(tensor: dict[str, Any]) -> int:
    """About what it takes on the page."""
    return len(tensor["bytes"]) + 9 * (len(tensor["rows"]) + len(tensor["cols"]))


def _run(run: StoredRun, bits: BitHistory, side: int) -> dict[str, Any]:
    return {
        "title": run.title,
        "tasks": [run.tasks[t] if t < len(run.tasks) else f"task {t + 1}" for t in range(bits.tasks)],
        "depth": bits.depth,
        "values": bits.has_values,
        "tensors": [_tensor(bits, name, side) for name in bits.names],
    }


def _tensor(bits: BitHistory, name: str, side: int) -> dict[str, Any]:
    shape = bits.shape(name)
    rows, cols = _places(shape, side)
    count = int(np.prod(shape))
    cells = np.minimum(np.add.outer(rows, cols).ravel(), count - 1)  # past the end of a vector: shown empty
    tasks = range(bits.tasks)
    frozen, gain = ([_pick(read(name, t), cells) for t in tasks] for read in (bits.bits, bits.gain))
    units = np.stack([_pick(bits.units(name, t), cells).astype(np.int32) for t in tasks])
    offset = [_pick(bits.offset(name, t), cells) for t in tasks] if bits.has_values else []
    parts = [
        *(plane.astype(np.uint8) for plane in frozen),
        *(np.clip(np.round(8 * plane), -127, 127).astype(np.int8) for plane in gain),
        *offset,
        *_byte_planes(np.diff(units, axis=0, prepend=0)),
    ]
    packed = zlib.compress(b"".join(part.tobytes() for part in parts), 9)
    return {
        "name": name,
        "shape": list(shape),
        "count": count,
        "rows": rows.tolist(),
        "cols": cols.tolist(),
        "bound": bits.bound(name),
        "means": [round(float(bits.bits(name, t).mean()), 2) for t in tasks],
        "bytes": base64.b64encode(packed).decode(),
    }


def _places(shape: tuple[int, ...], side: int) -> tuple[Array, Array]:
    """Flat index of the first cell of each row that is shown, and what each column adds to it."""
    if len(shape) < 2:
        count = max(1, int(np.prod(shape)))
        step = -(-count // (side * VECTOR_WIDTH))
        cols = np.arange(0, min(count, VECTOR_WIDTH * step), step)
        return np.arange(0, count, VECTOR_WIDTH * step), cols
    across = int(np.prod(shape[1:]))
    return _every(shape[0], side) * across, _every(across, side)


def _every(count: int, most: int) -> Array:
    return np.arange(0, count, -(-count // most))


def _pick(values: Array, cells: Array) -> Array:
    picked: Array = values.reshape(-1)[cells]
    return picked


def _byte_planes(values: Array) -> list[Array]:
    unsigned = values.astype(np.int32).view(np.uint32)
    return [((unsigned >> shift) & 255).astype(np.uint8) for shift in (0, 8, 16, 24)]
