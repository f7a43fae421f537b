"""Checkpoints: nested state as safetensors and JSON. Two are kept, and nothing is pickled."""

import hashlib
import json
import re
import shutil
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...model import devices
from ...model.ranks import Ranks
from ...model.trees import decode, encode
from .durable import sync_folder, write_through

_NUMBER = re.compile("[0-9]{6,12}")

TENSORS, TREE, EVENTS = "state.safetensors", "state.json", "events.jsonl"
DIGESTS = "sha256"  # of the other files, as the command sha256sum writes and checks them


@dataclass(frozen=True)
class Checkpoint:
    number: int
    state: dict[str, Any]
    events: bytes | None  # the lines of the events so far; None in a checkpoint of an earlier version


def save_checkpoint(folder: Path, number: int, state: dict[str, Any], events: bytes = b"") -> None:
    """Write checkpoint ``number`` below ``folder``; earlier ones stay whole whenever this is cut off."""
    from safetensors.torch import save

    tree, tensors = encode(state)
    files = {TENSORS: save(tensors), TREE: json.dumps({"state": tree}).encode(), EVENTS: events}
    digests = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    aside = folder / f".{number:06d}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, data in {**files, DIGESTS: digests.encode()}.items():
        write_through(aside / name, data)
    sync_folder(aside)
    place = folder / f"{number:06d}"
    shutil.rmtree(place, ignore_errors=True)
    aside.rename(place)
    sync_folder(folder)
    for old in _numbers(folder)[:-2]:
        shutil.rmtree(folder / f"{old:06d}")


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint; a damaged one is named and passed over."""
    numbers = _numbers(folder)
    for number in reversed(numbers):
        place = folder / f"{number:06d}"
        try:
            return _read(number, place)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            then = "the run begins again" if number == numbers[0] else "the one before it is used"
            warnings.warn(f"checkpoint {place} is damaged ({error}); {then}", stacklevel=2)
    return None


def next_number(folder: Path) -> int:
    """The number of a checkpoint newer than all that are there."""
    return max(_numbers(folder), default=-1) + 1


def seconds_since(folder: Path) -> float | None:
    """Seconds since the newest checkpoint was written; None where there is none."""
    numbers = _numbers(folder)
    return max(0.0, time.time() - (folder / f"{numbers[-1]:06d}").stat().st_mtime) if numbers else None


def share_state(state: dict[str, Any] | None, ranks: Ranks) -> dict[str, Any] | None:
    """The state of rank 0, on all ranks: other ranks may not see its disk."""
    tree, tensors = encode(state)
    kinds = {path: [str(t.dtype).removeprefix("torch."), list(t.shape)] for path, t in tensors.items()}
    tree, kinds = ranks.gather([tree, kinds])[0]
    for path, (dtype, shape) in kinds.items():
        tensors[path] = ranks.broadcast_(tensors.get(path, torch.empty(shape, dtype=getattr(torch, dtype))))
    shared: dict[str, Any] | None = decode(tree, tensors)
    return shared


def _read(number: int, place: Path) -> Checkpoint:
    from safetensors import SafetensorError
    from safetensors.torch import load

    names = [TENSORS, TREE] + [EVENTS] * (place / DIGESTS).exists()
    files = {name: (place / name).read_bytes() for name in names}
    tree = _require_digests(place, files)
    # in fresh memory: the alignment of memory-mapped tensors changes the last bits of products
    try:
        state = decode(tree["state"], {name: tensor.clone() for name, tensor in load(files[TENSORS]).items()})
    except SafetensorError as error:
        raise ValueError(f"{TENSORS} cannot be read: {error}") from None
    if not isinstance(state, dict):
        raise ValueError(f"{TREE} holds no state")
    return Checkpoint(number, state, files.get(EVENTS))


def _require_digests(place: Path, files: dict[str, bytes]) -> dict[str, Any]:
    """Refuse files that are not what was written; returns the tree. Earlier versions had a digest of tensors alone."""
    found = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    if EVENTS in files:
        expected = "".join(f"{digest}  {name}\n" for name, digest in found.items())
        written = (place / DIGESTS).read_text()
        if written != expected:
            wrong = next((name for name, digest in found.items() if f"{digest}  {name}\n" not in written), DIGESTS)
            raise ValueError(f"{wrong} is not what was written")
        return _tree(files[TREE])
    tree = _tree(files[TREE])
    if tree.get("sha256") != found[TENSORS]:
        raise ValueError(f"{TENSORS} is not what was written" if "sha256" in tree else f"{DIGESTS} is missing")
    return tree


def _tree(data: bytes) -> dict[str, Any]:
    tree = json.loads(data)
    if not isinstance(tree, dict):
        raise ValueError(f"{TREE} holds no state")
    return tree


def _numbers(folder: Path) -> list[int]:
    """Numbers of the checkpoints that are there. Any other folder, such as one that a user has renamed, is not one."""
    if not folder.is_dir():
        return []
    named = [path.name for path in folder.iterdir() if path.is_dir() and _NUMBER.fullmatch(path.name)]
    return sorted(int(name) for name in named if f"{int(name):06d}" == name)


def random_states(kind: str) -> dict[str, Any]:
    """Random states of the CPU, and of every device of the kind that a run uses."""
    states: dict[str, Any] = {"torch": torch.get_rng_state()}
    return states if kind == "cpu" else {**states, "devices": {kind: devices.random_states(kind)}}


def set_random_states(states: dict[str, Any]) -> None:
    """Set saved random states. Those of devices that are not here are left out."""
    torch.set_rng_state(states["torch"])
    for kind, saved in states.get("devices", {}).items():
        devices.set_random_states(kind, saved)
