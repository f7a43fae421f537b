"""Nested state as a tree of plain values and a dict of tensors, and as a file. Nothing is pickled."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._messages import install

SAFETENSORS = ".safetensors"


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


def write_tree(path: Path, value: Any) -> None:
    """Write nested state into a file: safetensors by its suffix, else torch's own format, which needs no extra.

    The file is written under another name and then renamed, so it is never incomplete.
    """
    tree, tensors = encode(value)
    aside = path.with_name(f".{path.name}.part")
    if path.suffix == SAFETENSORS:
        _require_safetensors(path)
        from safetensors.torch import save_file

        save_file(tensors, aside, metadata={"state": json.dumps(tree)})
    else:
        torch.save({"state": json.dumps(tree), "tensors": tensors}, aside)
    aside.replace(path)


def read_tree(path: Path) -> Any:
    """The nested state that ``write_tree`` wrote. Nothing in the file can execute code.

    Raises:
        ValueError: the file holds something else, or is damaged.
    """
    try:
        tree, tensors = _read_safetensors(path) if path.suffix == SAFETENSORS else _read_torch(path)
        return decode(json.loads(tree), tensors)
    except (OSError, ModuleNotFoundError):
        raise
    except Exception as error:  # what is raised depends on where a foreign file goes wrong
        raise ValueError(f"{path} must be a file that bitfreeze wrote, got another or a damaged one") from error


def _read_safetensors(path: Path) -> tuple[str, dict[str, Tensor]]:
    _require_safetensors(path)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        # Cloned, because a tensor that is mapped from a file changes with the file.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - file is no mapping
        return file.metadata()["state"], tensors


def _read_torch(path: Path) -> tuple[str, dict[str, Tensor]]:
    saved = torch.load(path, map_location="cpu", weights_only=True)
    return saved["state"], saved["tensors"]


def _require_safetensors(path: Path) -> None:
    try:
        import safetensors  # noqa: F401
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{path} needs safetensors: {install('transformers')}, or use a name that ends in .pt"
        ) from missing
