"""Growth: a watched tensor gets more rows, one for each new output, and its first rows stay what they are."""

import torch
from torch import Tensor

from ..model.layers import has_rows
from ..model.parameters import Slot, require_same_shape


class OtherRows(ValueError):
    """A tensor has more rows than before, and the first ones are not those that the last task left."""

    def __init__(self, slot: Slot, rows: int) -> None:
        super().__init__(
            f"'{slot.name}' has grown from {rows} to {len(slot.parameter)} rows, so its first {rows} must be those "
            "that the last task left, got others; copy the old rows into it (and load weights before a state of "
            "BLIP), or give the new tensor another name"
        )


def has_grown(slot: Slot, shape: torch.Size, *, sharded: bool) -> bool:
    """Whether a tensor that had this shape has more rows now; ``sharded``: whether its state is.

    Raises:
        ValueError: the shapes differ, and not by rows that can be added.
    """
    now = slot.parameter.shape
    if now == shape:
        return False
    by_rows = len(now) == len(shape) > 0 and now[1:] == shape[1:] and now[0] > shape[0] > 0
    if not by_rows or sharded or slot.layout.sharded or not all(has_rows(*owner) for owner in slot.owners):
        require_same_shape(slot, shape)
    return True


def refuse_other_shape(slot: Slot, shape: torch.Size, *, sharded: bool) -> None:
    """Refuse a tensor whose shape has changed since its task began."""
    if has_grown(slot, shape, sharded=sharded):
        raise ValueError(
            f"'{slot.name}' must keep its rows between two steps of a task, got {len(slot.parameter)} for {shape[0]}; "
            "add rows before the task's first step, or call blip.clamp_() right after"
        )


def with_rows(tensor: Tensor, rows: Tensor | float, count: int) -> Tensor:
    """A tensor with ``count`` more rows: those given, or rows that are filled with a number."""
    more = tensor.new_empty(count, *tensor.shape[1:])
    return torch.cat([tensor, more.copy_(rows) if isinstance(rows, Tensor) else more.fill_(rows)])


def begins_with(new: Tensor, old: Tensor | None, shape: torch.Size) -> bool:
    """Whether a tensor begins with all rows of an older one, which must have had this shape."""
    if old is None or old.shape != shape:
        return False
    return torch.equal(new.detach()[: len(old)], old.detach().to(new))
