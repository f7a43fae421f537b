"""Refusals of arguments that an estimate cannot use."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .._messages import warn_caller


def require_arguments(
    *, forward: Any, samples: Any, targets: Any, generator: Any, memory_bytes: Any, progress: Any, distributed: Any,
    **_: Any,
) -> None:  # fmt: skip
    """Refuse arguments of another kind than they must be. Others are looked at elsewhere."""
    functions = {"forward": forward, "targets": targets, "progress": progress}
    for name, value in functions.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be a function, got {value!r}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {generator!r}; make one with torch.Generator().manual_seed(0)"
        )
    if not isinstance(distributed, bool):
        raise TypeError(f"distributed must be True or False, got {distributed!r}")
    for name, value, least in (("memory_bytes", memory_bytes, 0), ("samples", 1 if samples is None else samples, 1)):
        if not hasattr(value, "__index__") or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def require_batches(data: Any) -> None:
    """Refuse data that are no batches, and warn of an iterator that has given some of them already."""
    if data is None or isinstance(data, int | float):
        raise TypeError(f"data must be an iterable of batches, such as a DataLoader, got {data!r}")
    if isinstance(data, Tensor | dict | str) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise TypeError(
            f"data must be an iterable of batches, got a {type(data).__name__}; wrap a single batch in a list"
        )
    kinds = {(item.dtype, item.shape[1:]) for item in data if isinstance(item, Tensor)} if type(data) is tuple else ()
    if len(kinds) > 1:  # x.split(...) is a tuple too, but its tensors have one kind
        raise TypeError("data must be an iterable of batches, got one batch (x, y); wrap it in a list, [(x, y)]")
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise TypeError(
            f"data must be an iterable of batches, got {type(data).__name__}, a dataset of single samples; wrap it in "
            "a DataLoader"
        )
    warn_of_used_up(data)


def warn_of_used_up(data: Any) -> None:
    """Warn if the data are an iterator of a DataLoader that has given some of its batches already."""
    if isinstance(data, _BaseDataLoaderIter) and data._num_yielded:
        warn_caller(
            f"data is an iterator of a DataLoader that has given {data._num_yielded} batches already, so these are "
            "left out; pass the DataLoader itself"
        )
