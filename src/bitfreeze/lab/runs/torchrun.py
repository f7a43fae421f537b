"""One run in several processes, started by torchrun."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ...model.ranks import Ranks, current_ranks

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


class RanksLost(RuntimeError):
    """Another rank has ended, or cannot be reached any more."""


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the ranks that torchrun's environment names: a single rank without torchrun, or those already joined.

    ``device`` is that of this rank, which decides how ranks send tensors to each other.
    """
    if current_ranks().count > 1 or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield current_ranks()
        return
    # Functions of this module keep the group that exists when they are defined, and the first DDP imports them.
    import torch.distributed.nn.functional

    if device.type != "cpu":
        torch.get_device_module(device).set_device(device)  # NCCL takes the current device
    dist.init_process_group(backend_for(device))
    ranks = current_ranks()
    try:
        yield ranks
    except RuntimeError as error:
        if not _is_of_network(error):
            raise
        raise RanksLost(
            f"rank {ranks.index} of {ranks.count} has lost touch with another, which has probably ended: the run "
            "is kept, and the same command goes on from its last checkpoint"
        ) from error
    finally:
        # Gloo's threads end with the last reference to the group. A thread that is left drops its tensors while Python
        # ends, which aborts the process. DistributedDataParallel is in a cycle of references, and keeps the group.
        gc.collect()
        dist.destroy_process_group()


def backend_for(device: torch.device) -> str:
    """The way in which ranks on devices of this kind send tensors to each other."""
    if device.type not in BACKENDS:
        known = " or ".join(BACKENDS)
        raise ValueError(f"ranks that share a run must be on {known}, got {device.type}; start it without torchrun")
    return BACKENDS[device.type]


def on_first_of_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _is_of_network(error: RuntimeError) -> bool:
    """Whether the error is of the connection: Gloo raises plain RuntimeErrors that name it or the connection."""
    return isinstance(error, dist.DistError) or (
        type(error) is RuntimeError and any(word in str(error) for word in ("gloo", "NCCL", "Connection", "Timed out"))
    )
