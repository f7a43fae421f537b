"""Blocks of a layer's rows, which stay in the processor's cache while they are turned, clamped and written.

A row holds the weights of one output. Index letters: see turning.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .held_tensor import HeldTensor
from .turning import Turning

CACHE = 2**20  # bytes of a block. Temporaries of that size come without page faults too


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a layer's weight or of its bias."""

    part: HeldTensor
    rows: slice  # of the part
    turning: Turning

    @property
    def groups(self) -> int:
        return len(self.turning.outputs)

    @property
    def _local(self) -> Tensor:
        return self._own(self.part.local.detach())

    @property
    def _centre(self) -> Tensor:
        assert self.part.centre is not None
        return self._own(self.part.centre).to(self.part.local)

    def _own(self, tensor: Tensor) -> Tensor:
        return self.turning.by_rows(tensor)[self.rows]

    def _as_matrix(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.groups, len(rows) // self.groups, -1)

    def of(self, outputs: Tensor) -> Tensor:
        """These rows of a tensor [g, o, ...]."""
        return outputs[:, self.rows] if self.groups == 1 else outputs

    def change(self) -> Tensor:
        """How far the rows are from their centre, [g, rows, i], in memory of its own."""
        return self._as_matrix(self._local - self._centre)

    def rest(self, along: Tensor, side: Tensor) -> Tensor:
        """The change without what it has along the input directions ``side``, [g, rows, i], in memory of its own.

        ``along`` is the change of all outputs along the input directions, [g, o, j].
        """
        return self.change().baddbmm_(self.of(along), side.mT, alpha=-1)

    def fisher(self) -> Tensor:
        """Fisher of what the input directions leave out, [g, rows, i]."""
        assert self.part.fisher is not None
        return self._as_matrix(self._own(self.part.fisher).to(self.part.local))

    def write_(self, change: Tensor, moved: Tensor) -> None:
        """Move the rows this far from their centre, if ``moved``; otherwise they stay as they are, to the bit."""
        local = self._local
        local.copy_(torch.where(moved, self._centre + change.reshape(local.shape), local))


def row_blocks(part: HeldTensor, turning: Turning) -> Iterator[RowBlock]:
    """The blocks of a part: few rows each where a processor with a cache works on a layer without groups.

    Args:
        part: state of a weight or a bias.
        turning: coordinates of the layer.
    """
    local = turning.by_rows(part.local)
    count = len(local)
    if len(turning.outputs) == 1 and local.device.type == "cpu":
        count = max(1, CACHE // (local[0].numel() * local.element_size()))
    for first in range(0, len(local), count):
        yield RowBlock(part, slice(first, first + count), turning)
