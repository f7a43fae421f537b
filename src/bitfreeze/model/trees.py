"""Nested state as a tree of plain values and a dict of tensors, which can be saved without pickling."""

from typing import Any

from torch import Tensor


def encode(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """A tree that JSON can hold, and copies on the CPU of the tensors that it refers to, by path."""
    tensors: dict[str, Tensor] = {}
    return _encode(value, "", tensors), tensors


def decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The value that ``encode`` was given. Tuples come back as lists."""
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "list" in tree:
        return [decode(item, tensors) for item in tree["list"]]
    return {key: decode(item, tensors) for key, item in tree["dict"]}


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_encode(item, f"{path}/{k}", tensors) for k, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"state must be tensors and plain values, got a {type(value).__name__} at '{path}'")
