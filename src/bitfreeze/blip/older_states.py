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
    kinds = ("tensors", "absent", "directions")
    tensors, absent, directions = ({name: dict(saved) for name, saved in state[kind].items()} for kind in kinds)
    for name, saved in directions.items():
        turning = Turning.loaded(saved)
        if turning.all_outputs or turning.by_output is not None:
            continue
        parts = parts_of(name, turning, {**absent, **tensors})
        saved["by_output"] = _move_by_output(turning, parts)
    return {**state, "tensors": tensors, "absent": absent, "directions": directions}


def _move_by_output(turning: Turning, parts: list[State]) -> Tensor:
    """Take the Fisher by output, [g, o, j], out of the rest of these tensors, and return it."""
    rest = torch.cat([turning.matrix(part["fisher"].to(turning.fisher)) for part in parts], -1)
    by_output = rest @ turning.inputs.square()
    left = (rest - by_output @ turning.inputs.square().mT).clamp_(min=0)
    for part, own in zip(parts, turning.split(left, [part["centre"] for part in parts]), strict=True):
        if turning.all_inputs:
            del part["fisher"]
        else:
            part["fisher"] = own.to(torch.bfloat16)
    return by_output.to(torch.bfloat16)
