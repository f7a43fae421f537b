"""Layouts: a parameter's entries are all in this process, or sharded over ranks by FSDP2 (``fully_shard``).

A layout converts between a whole tensor and this process's shard of it. The state of a parameter has the parameter's
layout. Sharded parameters are torch's DTensors; only this file handles those.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .ranks import Ranks


class Whole:
    """Layout of a parameter that every rank holds whole."""

    sharded = False

    def local(self, tensor: Tensor) -> Tensor:
        """This process's shard of a tensor in this layout."""
        return tensor

    def wrapped(self, local: Tensor) -> Tensor:
        """A tensor in this layout, from the shards of all ranks."""
        return local

    def full(self, local: Tensor) -> Tensor:
        """The whole tensor on every rank, from the shards of all ranks."""
        return local

    def part(self, full: Tensor) -> Tensor:
        """This process's shard of a whole tensor. Sends nothing."""
        return full

    def part_of_sum(self, full: Tensor, ranks: Ranks) -> Tensor:
        """This process's shard of the sum over ranks of whole tensors."""
        return ranks.sum_(full)

    def largest(self, value: float) -> float:
        """Maximum of a per-shard number over all shards."""
        return value

    def counts_here(self, ranks: Ranks) -> bool:
        """Whether this rank counts these entries, so that each entry counts once over all ranks."""
        return ranks.leads


@dataclass(frozen=True)
class Sharded:
    """Layout of a parameter whose entries are sharded over ranks. Methods: see ``Whole``."""

    like: Any  # a DTensor in this layout

    sharded = True

    def local(self, tensor: Any) -> Tensor:
        local: Tensor = tensor.detach().to_local()
        return local

    def wrapped(self, local: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        mesh, placements = self.like.device_mesh, self.like.placements
        return DTensor.from_local(
            local, mesh, placements, run_check=False, shape=self.like.shape, stride=self.like.stride()
        )

    def full(self, local: Tensor) -> Tensor:
        full: Tensor = self.wrapped(local).full_tensor()  # type: ignore[attr-defined]
        return full

    def part(self, full: Tensor) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = self.like.device_mesh, self.like.placements
        return distribute_tensor(full, mesh, placements, src_data_rank=None).to_local()

    def part_of_sum(self, full: Tensor, ranks: Ranks) -> Tensor:
        from torch.distributed.tensor import DTensor, Partial

        mesh = self.like.device_mesh
        total = DTensor.from_local(full, mesh, [Partial()] * mesh.ndim, run_check=False)
        return total.redistribute(placements=self.like.placements).to_local().to(self.local(self.like).device)

    def largest(self, value: float) -> float:
        from torch.distributed.tensor import DTensor, Partial

        mesh = self.like.device_mesh
        number = torch.tensor(value, dtype=torch.float64, device=mesh.device_type)
        return DTensor.from_local(number, mesh, [Partial("max")] * mesh.ndim, run_check=False).full_tensor().item()

    def counts_here(self, ranks: Ranks) -> bool:
        """Whether this rank has the first replica of its shard."""
        coordinates = self.like.device_mesh.get_coordinate() or []
        return all(p.is_shard() or place == 0 for p, place in zip(self.like.placements, coordinates, strict=True))


Layout = Whole | Sharded
WHOLE = Whole()


def layout_of(parameter: Tensor) -> Layout:
    return Sharded(parameter) if is_sharded(parameter) else WHOLE


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(type(tensor), "to_local")


def require_supported(model: nn.Module, ranks: Ranks) -> None:
    """Raise ValueError if the model is sharded in a way that is not supported."""
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ValueError(
                "FullyShardedDataParallel (FSDP1) flattens parameters, so their entries cannot be told apart; use "
                "FSDP2, torch.distributed.fsdp.fully_shard"
            )
    for name, parameter in model.named_parameters():
        if is_sharded(parameter) and parameter.device_mesh.size() != ranks.count:  # type: ignore[attr-defined]
            raise ValueError(
                f"'{name}' is sharded over {parameter.device_mesh.size()} ranks, but {ranks.count} take part; all "  # type: ignore[attr-defined]
                "ranks that hold shards of the model, and no others, must call this together (distributed=True)"
            )


def reshard(model: nn.Module) -> None:
    """Put parameters back into shards: FSDP leaves them whole after some forward passes."""
    for module in model.modules():
        if hasattr(type(module), "unshard"):
            module.reshard()  # type: ignore[operator]


@contextmanager
def as_one_process(model: nn.Module) -> Iterator[None]:
    """Give each process whole parameters, and forward passes that send nothing.

    Each rank can then run any number of batches. FSDP's shards stay as they are, and its hooks are not called.
    """
    reshard(model)
    with ExitStack() as stack:
        gathered: dict[int, nn.Parameter] = {}
        for module in model.modules():
            sharded = {name: p for name, p in module._parameters.items() if p is not None and is_sharded(p)}
            for parameter in sharded.values():
                if id(parameter) not in gathered:  # tied parameters stay tied
                    layout = Sharded(parameter)
                    full = layout.full(layout.local(parameter))
                    gathered[id(parameter)] = nn.Parameter(full, parameter.requires_grad)
            _replace(stack, module._parameters, {name: gathered[id(p)] for name, p in sharded.items()})
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                _replace(stack, hooks, {key: _do_nothing for key, hook in hooks.items() if _is_of_fsdp(hook)})
            if isinstance(module, DistributedDataParallel):
                _replace(stack, vars(module), dict.fromkeys(DDP_SYNCS, False))
        yield


DDP_SYNCS = ("require_backward_grad_sync", "require_forward_param_sync")


def _replace(stack: ExitStack, mapping: dict[Any, Any], values: dict[Any, Any]) -> None:
    """Put other values under these keys, until the stack closes."""
    stack.callback(mapping.update, {key: mapping[key] for key in values})
    mapping.update(values)


def _is_of_fsdp(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")


def _do_nothing(*_: Any) -> None:
    """Stands in for a hook."""
