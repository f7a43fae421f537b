"""Batches of any structure: the input for ``forward``, the labels, and single samples."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Leaf = Tensor | PackedSequence  # a PackedSequence has no rows


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Input and labels of a batch: the first two elements of a tuple or list, else the whole batch and None."""
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Path and tensor of each tensor in a batch."""
    if isinstance(value, Leaf):
        yield path, value
    elif isinstance(value, Mapping):
        for key in value:
            yield from tensors_of(value[key], f"{path}/{key}")
    elif isinstance(value, tuple | list):
        for k, item in enumerate(value):
            yield from tensors_of(item, f"{path}/{k}")


def map_tensors(function: Callable[[str, Any], Any], value: Any, path: str = "") -> Any:
    """The same structure with each tensor replaced by ``function(path, tensor)``."""
    if isinstance(value, Leaf):
        return function(path, value)
    if isinstance(value, Mapping):
        result: Any = copy.copy(value)  # keeps the type of dict-like batches whose items are attributes too
        for key in value:
            result[key] = map_tensors(function, value[key], f"{path}/{key}")
        return result
    if isinstance(value, tuple | list):
        items = [map_tensors(function, item, f"{path}/{k}") for k, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def to_device(value: Any, device: torch.device) -> Any:
    return map_tensors(lambda _, t: t.to(device, non_blocking=True), value)


Places = dict[str, bool]  # whether a tensor of a batch, by its path, has a row for each sample


def row_places(value: Any, n: int) -> Places:
    """Which tensors of a batch have n rows, by path."""
    return {path: isinstance(t, Tensor) and t.ndim > 0 and len(t) == n for path, t in tensors_of(value)}


def take_rows(value: Any, rows: slice, places: Places) -> Any:
    """Some samples of a batch: the rows of the tensors at ``places``, and all of the others."""
    return map_tensors(lambda path, t: t[rows] if places[path] else t, value)


def row_tensors(value: Any, places: Places) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """The tensors at ``places``, and a function that rebuilds the batch with others in their place."""
    found = {path: t for path, t in tensors_of(value) if places[path] and isinstance(t, Tensor)}

    def rebuild(replacements: list[Tensor]) -> Any:
        others = dict(zip(found, replacements, strict=True))
        return map_tensors(lambda path, t: others.get(path, t), value)

    return list(found.values()), rebuild
