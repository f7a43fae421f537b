"""Nested state as two things that can be written down without pickling: a tree of plain values, and its tensors."""

from typing import Any

from torch import Tensor


def encode(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """A tree that JSON can hold, and by path the tensors that it refers to."""
    tensors: dict[str, Tensor] = {}
    return _encode(value, "", tensors), tensors


def decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """What ``encode`` was given; tuples come back as lists."""
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "list" in tree:
        return [decode(item, tensors) for item in tree["list"]]
    return {key: decode(item, tensors) for key, item in tree["dict"]}


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = value.detach().clone().contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_encode(item, f"{path}/{k}", tensors) for k, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"'{path}' is a {type(value).__name__}: state must be tensors and plain values")
