"""Ranks: the processes that train one model together, as torch.distributed has them. Without it there is one."""

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
    """Another rank could not go on, so this one does not either."""


@dataclass(frozen=True)
class Ranks:
    """How many there are, and which one this is. With one rank nothing is ever sent."""

    count: int = 1
    index: int = 0

    @property
    def leads(self) -> bool:
        """Rank 0 decides, writes and speaks for all."""
        return self.index == 0

    def share(self, total: int) -> int:
        """How many of ``total`` samples are this rank's, dealt round: its k-th is number k * count + index of all."""
        return len(range(self.index, total, self.count))

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.count > 1:
            there = _reachable(tensor)
            dist.all_reduce(there)
            _put_back(tensor, there)
        return tensor

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """What rank 0 has, in place."""
        if self.count > 1:
            there = _reachable(tensor)
            dist.broadcast(there, src=0)
            _put_back(tensor, there)
        return tensor

    def gather(self, value: T) -> list[T]:
        """A plain value of each rank. It travels as JSON: nothing that arrives can execute code."""
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
        """What fails in here on one rank is raised on all, so that none waits for it for ever. Send nothing in here."""
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
                raise RankFailed(f"rank {index} of {self.count} failed, and so do all: {message}")


def world(distributed: bool = True) -> Ranks:
    """The ranks of torch.distributed's process group; one where there is no such group, or ``distributed`` is false."""
    if not (distributed and dist.is_available() and dist.is_initialized()):
        return Ranks()
    return Ranks(dist.get_world_size(), dist.get_rank())


def _reachable(tensor: Tensor) -> Tensor:
    """The tensor where the process group can read it: NCCL sees GPUs only."""
    on_gpu = dist.get_backend() == "nccl" and tensor.device.type != "cuda"
    return tensor.contiguous() if not on_gpu else tensor.to("cuda", memory_format=torch.contiguous_format)


def _put_back(tensor: Tensor, there: Tensor) -> None:
    if there is not tensor:
        tensor.copy_(there)
