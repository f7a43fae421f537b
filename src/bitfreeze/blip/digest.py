"""The digest of a saved state: a hash of its outline and of the bytes of each tensor, in one plain string.

The outline holds all names, plain values, dtypes and shapes, so a name that was changed, two tensors that were swapped
and a tensor that was left out change it. Each tensor has a hash of its own, so that the damaged one can be named.
SHA-256 is in the standard library, and processors compute it at 2 GB/s. (A CRC would find each single flip too, but it
is easily made to match, and finds a swap of two equal parts only through the outline.)
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..model.shards import is_sharded

KEY = "digest"
LENGTH = 32  # hexadecimal digits of each hash
ANYTHING = "-"  # in place of the hash of a tensor without values here: sharded, or on the meta device


def digest(state: Mapping[str, Any]) -> str:
    """Digest of a state, without its own digest."""
    return " ".join([_outline_hash(state), *(_hash(tensor) for _, tensor in _tensors(state))])


def require_digest(state: Mapping[str, Any]) -> None:
    """Refuse a state whose digest does not fit. A state without one was saved before there were digests."""
    saved = state.get(KEY)
    if saved is None and KEY not in state:
        return
    if not isinstance(saved, str):
        raise _damaged("its digest is no text")
    outline, *hashes = saved.split(" ")
    if outline != _outline_hash(state):
        raise _damaged("its names, numbers and shapes are not what was saved")
    tensors = list(_tensors(state))
    if len(hashes) != len(tensors):
        raise _damaged("its digest was cut off")
    for expected, (path, tensor) in zip(hashes, tensors, strict=True):
        if ANYTHING not in (expected, found := _hash(tensor)) and expected != found:
            raise _damaged(f"{' of '.join(repr(part) for part in reversed(path))} is not what was saved")


def _damaged(reason: str) -> ValueError:
    return ValueError(f"the state is damaged: {reason}; use another copy of the state")


def _outline_hash(state: Mapping[str, Any]) -> str:
    outline = _outline({key: value for key, value in state.items() if key != KEY})
    return hashlib.sha256(json.dumps(outline).encode()).hexdigest()[:LENGTH]


def _outline(value: Any) -> Any:
    """All of a nested value except the numbers in tensors. Keys are sorted, because some formats reorder them."""
    if isinstance(value, Tensor):
        return ["tensor", str(value.dtype), list(value.shape)]
    if isinstance(value, Mapping):
        return ["dict", [[repr(key), _outline(value[key])] for key in sorted(value, key=repr)]]
    if isinstance(value, list | tuple):
        return ["list", [_outline(item) for item in value]]
    return ["value", repr(value)]


def _tensors(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """All tensors of a nested value with their paths, in the order of the outline."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from _tensors(value[key], (*path, str(key)))
    elif isinstance(value, list | tuple):
        for k, item in enumerate(value):
            yield from _tensors(item, (*path, str(k)))


def weights_hash(tensor: Tensor) -> str:
    """Hash of the values of weights in float32. The same values in half precision have the same hash."""
    return _hash(tensor.detach().float())


def _hash(tensor: Tensor) -> str:
    if is_sharded(tensor) or tensor.is_meta:
        return ANYTHING
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()[:LENGTH]
