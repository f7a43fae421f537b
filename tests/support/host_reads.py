"""Counts what makes the host wait for a device: numbers that it reads, and results whose size it must know."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# operations whose result is a number on the host, or a tensor whose size depends on values
WAITING = {
    "_local_scalar_dense", "item", "equal", "is_nonzero", "allclose", "nonzero", "masked_select", "unique_dim",
    "_unique", "_unique2", "unique_consecutive", "bincount", "histc", "repeat_interleave",
}  # fmt: skip


class HostReads(TorchDispatchMode):
    """Within ``with HostReads() as reads`` every such operation on a tensor of another device than the CPU is counted.

    ``reads.total`` is their number, ``reads.names`` how many there are of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.names.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(not tensor.is_cpu for tensor in given):
            name = func.overloadpacket.__name__
            if name in WAITING or self._reaches_host(name, args, result):
                self.names[name] += 1
        return result

    @staticmethod
    def _reaches_host(name: str, args: Any, result: Any) -> bool:
        if name == "index":  # by a mask, whose ones must be counted
            masks = [index for index in args[1] if isinstance(index, Tensor)]
            return any(mask.dtype in (torch.bool, torch.uint8) for mask in masks)
        copies = name in ("_to_copy", "copy_", "_copy_from", "to")
        return copies and isinstance(result, Tensor) and result.is_cpu
