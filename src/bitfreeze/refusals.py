"""What BLIP refuses to start with: settings that make no sense, and saved states that do not belong to the model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .bits import MAX_DEPTH
from .distributed import Ranks
from .parameters import Slot
from .rules import Rules
from .tensor_state import TensorState

STATE_FORMAT = 1
MAX_BOUND = 1e6


def require_settings(bits: int, budget: float, prior: float | None, bound: float, rules: Rules | None) -> None:
    whole = hasattr(bits, "__index__") and not isinstance(bits, bool)
    if not (whole and 1 <= bits <= MAX_DEPTH):
        raise ValueError(f"bits must be a whole number from 1 to {MAX_DEPTH}, got {bits!r}")
    if not 0 < budget < 1:
        raise ValueError(f"budget must lie between 0 and 1 (a share of the bits), got {budget!r}")
    if prior is not None and not 0 < prior < float("inf"):
        raise ValueError(f"prior must be above 0, got {prior!r}")
    if not 0 < bound <= MAX_BOUND:
        raise ValueError(
            f"bound must be above 0, got {bound!r}" if not bound > 0 else f"bound must be at most {MAX_BOUND:g}"
        )
    if not isinstance(rules, Rules | None):
        presets = "Rules.strict(), Rules.following(), Rules.released() or Rules.text()"
        raise TypeError(f"rules must be {presets}, got {rules!r}")


def require_state(state: Any) -> None:
    keys = ("settings", "prior", "tasks", "tensors", "absent")
    if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT or any(k not in state for k in keys):
        raise ValueError("this is not a state dict of BLIP: pass what blip.state_dict() returned")
    kinds = {"bits": torch.uint8, "centre": torch.int32, "fisher": torch.float32}
    for name, saved in state["tensors"].items():
        there = {kind: saved[kind].dtype for kind in kinds if kind in saved}
        if there and there != kinds:
            raise ValueError(f"the state of '{name}' is damaged (it holds {there}): use another copy of the state")


def renamed(names: Iterable[str], rename: Mapping[str, str] | Callable[[str], str] | None) -> dict[str, str]:
    if rename is None:
        return {name: name for name in names}
    mapping = rename.get if isinstance(rename, Mapping) else lambda name, _: rename(name)
    new_names = {name: mapping(name, name) for name in names}
    if len(set(new_names.values())) < len(new_names):
        raise ValueError("rename gives two saved tensors the same name: each needs one of its own")
    return new_names


def require_same_model(slots: dict[str, Slot], tensors: dict[str, dict[str, Any]]) -> None:
    missing = sorted(set(tensors) - set(slots))
    if missing:
        raise ValueError(
            f"the state is of another model: it knows '{missing[0]}', which is not watched here (see rename=)"
        )
    for name, saved in tensors.items():
        if "bits" in saved and saved["bits"].shape != slots[name].parameter.shape:
            raise ValueError(
                f"the state is of another model: '{name}' has the shape {list(saved['bits'].shape)} there and "
                f"{list(slots[name].parameter.shape)} here"
            )


def require_equal_on(ranks: Ranks, states: Iterable[TensorState]) -> None:
    """Ranks must hold the same values of what each of them holds whole: frozen bits would not fit both."""
    whole = [state.slot for state in states if not state.layout.sharded]
    if ranks.count == 1 or not whole:
        return
    everywhere = ranks.gather([_digest(slot.local.detach()) for slot in whole])
    for index, digests in enumerate(everywhere):
        for slot, digest, first in zip(whole, digests, everywhere[0], strict=True):
            if digest != first:
                raise ValueError(
                    f"'{slot.name}' has other values on rank {index} than on rank 0: train with "
                    "DistributedDataParallel, or pass distributed=False where each rank trains a model of its own"
                )


def _digest(values: torch.Tensor) -> int:
    whole_numbers = torch.int32 if values.dtype == torch.float32 else torch.int64
    return int(values.view(whole_numbers).sum(dtype=torch.int64))
