"""Devices of torch: the random states of a kind of device, and tensors moved between devices."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

HOST = torch.device("cpu")


def accelerator() -> torch.device | None:
    """The accelerator of this machine. torch 2.6 raises where there is none, so it is asked first."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def random_states(kind: str) -> list[Tensor]:
    """Random state of each device of a kind, such as ``"cuda"``, as tensors of the CPU; none for a kind without."""
    if kind == "cpu":
        return [torch.get_rng_state()]
    module: Any = getattr(torch, kind, None)
    if not hasattr(module, "get_rng_state"):
        return []
    if kind == "mps":
        return [module.get_rng_state()]
    return [module.get_rng_state(torch.device(kind, k)) for k in range(module.device_count())]


def set_random_states(kind: str, states: list[Tensor]) -> None:
    """Set the random states of the devices of a kind that are here; states of further devices are left out."""
    if kind == "cpu":
        torch.set_rng_state(states[0])
        return
    module: Any = getattr(torch, kind, None)
    if not hasattr(module, "set_rng_state"):
        return
    if kind == "mps":
        module.set_rng_state(states[0])
        return
    for k, state in enumerate(states[: module.device_count()]):
        module.set_rng_state(state, torch.device(kind, k))


def moved(value: Any, device: torch.device) -> Any:
    """A nested state of dicts, lists and tuples with its tensors on a device."""
    return _mapped(lambda tensor: tensor.to(device), value)


def numbers_of(tensors: list[Tensor]) -> list[list[float]]:
    """The entries of each tensor, read with one copy to the host where they are on another device."""
    there = [tensor.flatten() for tensor in tensors]
    if all(tensor.is_cpu for tensor in there):
        return [tensor.tolist() for tensor in there]
    device = next(tensor.device for tensor in there if not tensor.is_cpu)
    joined = torch.cat([tensor.to(device, torch.float64) for tensor in there]).cpu()
    return [part.tolist() for part in torch.split(joined, [tensor.numel() for tensor in there])]


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _mapped(function, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(function, item) for item in value)
    return value
