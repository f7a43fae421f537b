"""States that release 0.2.0 saved, as they are now.

There what the directions of both sides leave out was one rest, entry by entry. Now the part by output is apart from it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .protection import parts_of
from .turning import Turning

State = dict[str, Any]


def with_parts_by_output(state: Mapping[str, Any]) -> State:
    """The state with a Fisher by output for each layer that has output directions, but not all of them."""
    tensors: State = {name: dict(saved) for name, saved in state["tensors"].items()}
    directions: State = {name: dict(saved) for name, saved in state["directions"].items()}
    for name, saved in directions.items():
        turning = Turning.loaded(saved)
        if turning.all_outputs or turning.by_output is not None:
            continue
        parts = parts_of(name, turning, {**state["absent"], **tensors})
        saved["by_output"] = _move_by_output(turning, parts)
    return {**state, "tensors": tensors, "directions": directions}


def _move_by_output(turning: Turning, parts: list[State]) -> Tensor:
    """Take the Fisher by output, [g, o, j], out of the rest of these tensors, and return it."""
    rest = torch.cat([turning.matrix(part["fisher"].to(turning.fisher)) for part in parts], -1)
    by_output = rest @ turning.inputs.square()
    left = (rest - by_output @ turning.inputs.square().mT).clamp_(min=0)
    widths = [turning.by_rows(part["centre"])[0].numel() for part in parts]
    for part, own in zip(parts, torch.split(left, widths, -1), strict=True):
        kept = turning.like(own, part["centre"]).to(torch.bfloat16)
        part.pop("fisher") if turning.all_inputs else part.update(fisher=kept)
    return by_output.to(torch.bfloat16)
