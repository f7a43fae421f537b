"""Where the samples of a task are kept: on the device as bytes, or in memory of the host where they are too many."""

from dataclasses import replace

import torch

from ..devices import current_device, free_bytes
from ..tasks import Split, TaskData

SHARE = 0.25  # of the free memory of a device that a split may take
UNKNOWN = 2**30  # bytes that a split may take where torch cannot tell the free memory


def placed_data(data: TaskData) -> TaskData:
    """The samples of a task, placed for the device of the run."""
    train = placed(data.train)
    return TaskData(train, train if data.valid is data.train else placed(data.valid), placed(data.test))


def placed(split: Split) -> Split:
    """The split, whose batches come on the device of the run. Samples that do not fit stay on the host."""
    device = current_device()
    if device.type == "cpu":
        return split
    free = free_bytes(device)
    if split.nbytes <= (UNKNOWN if free is None else SHARE * free):
        try:
            return replace(split, x=split.x.to(device), y=split.y.to(device), device=device)
        except torch.OutOfMemoryError:
            return replace(split, device=device)
    return replace(split, device=device)
