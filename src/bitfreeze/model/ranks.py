"""Ranks: the processes of torch.distributed that train one model together. Without torch.distributed there is one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class RankFailed(RuntimeError):
    """Raised on a rank because another rank failed."""


@dataclass(frozen=True)
class Ranks:
    """The number of ranks, and the index of this one. One rank alone sends nothing."""

    count: int = 1
    index: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides and writes for all ranks."""
        return self.index == 0

    def share(self, total: int) -> int:
        """Number of this rank's samples out of ``total``. Its k-th sample is number k * count + index of all."""
        return len(range(self.index, total, self.count))

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place."""
        if self.count > 1:
            there = _reachable(tensor)
            dist.all_reduce(there)
            _put_back(tensor, there)
        return tensor

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """Copy rank 0's tensor to all ranks, in place."""
        if self.count > 1:
            there = _reachable(tensor)
            dist.broadcast(there, src=0)
            _put_back(tensor, there)
        return tensor

    def gather(self, value: T) -> list[T]:
        """The plain values of all ranks. They are sent as JSON, which cannot execute code."""
        if self.count == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [int(size) for size in self._all(torch.tensor([len(data)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        return [json.loads(bytes(part[:size].tolist())) for part, size in zip(self._all(padded), sizes, strict=True)]

    def _all(self, tensor: Tensor) -> list[Tensor]:
        there = _reachable(tensor)
        parts = [torch.empty_like(there) for _ in range(self.count)]
        dist.all_gather(parts, there)
        return [part.cpu() for part in parts]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise an error of one rank on all ranks, so that none waits for ever. Do not send inside this context."""
        if self.count == 1:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        messages = self.gather(None if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        for index, message in enumerate(messages):
            if message is not None:
                raise RankFailed(f"rank {index} of {self.count} failed, so all ranks stop: {message}")


def current_ranks(distributed: bool = True) -> Ranks:
    """Ranks of torch.distributed's process group, or one rank if there is no group or ``distributed`` is false."""
    if not (distributed and dist.is_available() and dist.is_initialized()):
        return Ranks()
    return Ranks(dist.get_world_size(), dist.get_rank())


def _reachable(tensor: Tensor) -> Tensor:
    """The tensor on a device that the process group can read: NCCL reads only GPUs."""
    kind = {"nccl": "cuda", "xccl": "xpu"}.get(dist.get_backend(), tensor.device.type)
    return tensor.contiguous() if tensor.device.type == kind else tensor.to(kind).contiguous()


def _put_back(tensor: Tensor, there: Tensor) -> None:
    if there is not tensor:
        tensor.copy_(there)
