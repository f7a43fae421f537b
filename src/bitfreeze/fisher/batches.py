"""Batches of any shape: what goes to ``forward``, what are labels, and how to take single samples out of them."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def split_batch(batch: Any) -> tuple[Any, Any]:
    """A tuple or list gives its first element to ``forward`` and its second as labels; anything else goes whole."""
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same structure with each tensor replaced; what is neither a tensor nor a container is left as it is."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        result: Any = copy.copy(value)  # keeps the type of dict-like batches that offer their items as attributes
        for key in value:
            result[key] = map_tensors(function, value[key])
        return result
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(function, item) for item in value)
    return value


def to_device(value: Any, device: torch.device) -> Any:
    return map_tensors(lambda t: t.to(device, non_blocking=True), value)


def row_places(value: Any, n: int) -> list[bool]:
    """For each tensor of a batch of n samples, in order, whether it has a row for each sample."""
    places: list[bool] = []

    def look(t: Tensor) -> Tensor:
        places.append(t.ndim > 0 and len(t) == n)
        return t

    map_tensors(look, value)
    return places


def take_rows(value: Any, rows: slice, places: list[bool]) -> Any:
    """The given samples of a batch: rows of the tensors at these places."""
    remaining = iter(places)
    return map_tensors(lambda t: t[rows] if next(remaining) else t, value)


def row_tensors(value: Any, places: list[bool]) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """The tensors at these places, and a function that puts others in their stead."""
    found: list[Tensor] = []
    remaining = iter(places)
    map_tensors(lambda t: found.append(t) if next(remaining) else None, value)

    def rebuild(replacements: list[Tensor]) -> Any:
        wanted, others = iter(places), iter(replacements)
        return map_tensors(lambda t: next(others) if next(wanted) else t, value)

    return found, rebuild
