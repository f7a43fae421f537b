"""Checkpoints: nested state as safetensors and JSON. Two are kept, and nothing is pickled."""

import hashlib
import json
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from ...model import devices
from ...model.ranks import Ranks
from ...model.trees import decode, encode

TENSORS, TREE = "state.safetensors", "state.json"


def save_checkpoint(folder: Path, number: int, state: dict[str, Any]) -> None:
    """Write checkpoint ``number`` below ``folder``; earlier ones stay whole whenever this is cut off."""
    from safetensors.torch import save

    tree, tensors = encode(state)
    data = save(tensors)
    aside = folder / f".{number:06d}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    _write_through(aside / TENSORS, data)
    text = json.dumps({"sha256": hashlib.sha256(data).hexdigest(), "state": tree})
    _write_through(aside / TREE, text.encode())
    place = folder / f"{number:06d}"
    shutil.rmtree(place, ignore_errors=True)
    aside.rename(place)
    for old in _numbers(folder)[:-2]:
        shutil.rmtree(folder / f"{old:06d}")


def _write_through(file: Path, data: bytes) -> None:
    """Write to the disk itself: a power cut must not take this checkpoint and the one before it."""
    with file.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def load_checkpoint(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """The number and state of the newest whole checkpoint; a damaged one is named and passed over."""
    numbers = _numbers(folder)
    for number in reversed(numbers):
        try:
            return number, _read(folder / f"{number:06d}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            place = folder / f"{number:06d}"
            then = "the run begins again" if number == numbers[0] else "the one before it is used"
            warnings.warn(f"checkpoint {place} is damaged ({error}); {then}", stacklevel=2)
    return None


def next_number(folder: Path) -> int:
    """The number of a checkpoint newer than all that are there."""
    return max(_numbers(folder), default=-1) + 1


def seconds_since(folder: Path) -> float | None:
    """Seconds since the newest checkpoint was written; None where there is none."""
    numbers = _numbers(folder)
    return time.time() - (folder / f"{numbers[-1]:06d}").stat().st_mtime if numbers else None


def share_state(state: dict[str, Any] | None, ranks: Ranks) -> dict[str, Any] | None:
    """The state of rank 0, on all ranks: other ranks may not see its disk."""
    tree, tensors = encode(state)
    kinds = {path: [str(t.dtype).removeprefix("torch."), list(t.shape)] for path, t in tensors.items()}
    tree, kinds = ranks.gather([tree, kinds])[0]
    for path, (dtype, shape) in kinds.items():
        tensors[path] = ranks.broadcast_(tensors.get(path, torch.empty(shape, dtype=getattr(torch, dtype))))
    shared: dict[str, Any] | None = decode(tree, tensors)
    return shared


def _read(place: Path) -> dict[str, Any]:
    from safetensors.torch import load

    data = (place / TENSORS).read_bytes()
    tree = json.loads((place / TREE).read_text())
    if hashlib.sha256(data).hexdigest() != tree["sha256"]:
        raise ValueError(f"{TENSORS} is not what was written")
    # in fresh memory: the alignment of memory-mapped tensors changes the last bits of products
    state = decode(tree["state"], {name: tensor.clone() for name, tensor in load(data).items()})
    if not isinstance(state, dict):
        raise ValueError(f"{TREE} holds no state")
    return state


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.is_dir()) if folder.exists() else []


def random_states(kind: str) -> dict[str, Any]:
    """Random states of the CPU, and of every device of the kind that a run uses."""
    states: dict[str, Any] = {"torch": torch.get_rng_state()}
    return states if kind == "cpu" else {**states, "devices": {kind: devices.random_states(kind)}}


def set_random_states(states: dict[str, Any]) -> None:
    """Set saved random states. Those of devices that are not here are left out."""
    torch.set_rng_state(states["torch"])
    for kind, saved in states.get("devices", {}).items():
        devices.set_random_states(kind, saved)
