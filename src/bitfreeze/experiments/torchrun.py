"""Processes that torchrun has started for one run find each other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from ..distributed import Ranks, world


class RanksLost(RuntimeError):
    """Another rank has ended, or cannot be reached any more."""


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """The ranks of this run, as torchrun's environment tells; one without it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    dist.init_process_group("gloo")  # the laboratory trains on CPUs
    ranks = world()
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
        dist.destroy_process_group()


def on_first_of_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _is_of_network(error: RuntimeError) -> bool:
    """Gloo raises plain RuntimeErrors, which name it or the connection."""
    return isinstance(error, dist.DistError) or (
        type(error) is RuntimeError and any(word in str(error) for word in ("gloo", "Connection", "Timed out"))
    )
