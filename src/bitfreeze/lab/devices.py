"""The device of a run: which one is meant, whether it is there, and how results name it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from ..model.devices import HOST, accelerator

_current = HOST


class DeviceFull(RuntimeError):
    """The memory of a device is used up."""


def current_device() -> torch.device:
    """The device that runs of this process use now: the CPU, except within ``on_device``."""
    return _current


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Let runs use a device, and put the former one back at the end. A device that is full raises DeviceFull."""
    global _current
    before, _current = _current, device
    module = _module(device.type)
    if device.index is not None and hasattr(module, "set_device"):
        module.set_device(device)
    try:
        yield
    except torch.OutOfMemoryError as error:
        first = str(error).partition(". GPU")[0].splitlines()[0]
        full = DeviceFull(
            f"{device} is full ({first.rstrip('.')}): end what else uses it and start again, or go on with --device cpu"
        )
        for note in getattr(error, "__notes__", ()):
            full.add_note(note)
        raise full from error
    finally:
        _current = before


def find_device(name: str) -> torch.device:
    """The device that a user means by ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, ``xla`` or another of torch.

    Under torchrun each rank of a machine takes a device of its own.

    Raises:
        ValueError: there is no such device here.
    """
    device = _accelerator() if name == "auto" else _parsed(name)
    if device.type == "cpu":
        return HOST
    if device.type == "xla":
        return _xla(device)
    count = device_count(device.type)
    if not count:
        raise ValueError(f"device {name} is not there: this machine has {_present()}; use one of these, or auto")
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local_ranks > 1 and device.index is None:
        if local_ranks > count:
            raise ValueError(
                f"each rank must have a device of its own, got {local_ranks} ranks and {count} of {device.type}; use "
                f"torchrun --nproc-per-node {count}, or --device cpu"
            )
        return torch.device(device.type, int(os.environ["LOCAL_RANK"]))
    if device.index is not None and device.index >= count:
        raise ValueError(f"device {name} is not there: this machine has {_present()}; use one of these, or auto")
    return torch.device(device.type, device.index or 0)


def devices_to_deal(name: str) -> list[str]:
    """Names of the devices among which the runs of a sweep are dealt: all of a kind, unless one is named."""
    device = find_device(name)
    if device.type in ("cpu", "xla") or ":" in name:
        return [str(device)]
    return [f"{device.type}:{k}" for k in range(device_count(device.type))]


def device_count(kind: str) -> int:
    """Number of devices of a kind that can be used here."""
    module = _module(kind)
    if kind == "cpu" or module is None or not module.is_available():
        return int(kind == "cpu")
    return int(module.device_count())


def described(device: torch.device) -> str:
    """A device in words for results: its kind, and for a GPU its model and the versions of its libraries."""
    if device.type != "cuda":
        return device.type
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    cudnn: Any = torch.backends.cudnn
    return f"cuda ({torch.cuda.get_device_name(device)}, {runtime}, cuDNN {cudnn.version()})"


def free_bytes(device: torch.device) -> int | None:
    """Memory of a device that is free, in bytes; None where torch cannot tell."""
    get_info = getattr(_module(device.type), "mem_get_info", None)
    return None if get_info is None else int(get_info(device)[0])


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device. From pinned memory, where torch has it for this device, the host does not wait."""
    found = accelerator()
    if tensor.is_cpu and found is not None and found.type == device.type != "mps":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _accelerator() -> torch.device:
    """The accelerator of this machine, else the CPU. MPS has no float64, so it must be asked for by name."""
    found = accelerator()
    return HOST if found is None or found.type == "mps" else torch.device(found.type)


def _parsed(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "meta":
        raise ValueError(f"device must be auto, cpu, cuda, cuda:1, mps, xla or another of torch, got {name!r}")
    return device


def _xla(device: torch.device) -> torch.device:
    try:
        return torch.device(import_module("torch_xla").device(device.index))
    except ImportError:
        raise ValueError(
            "device xla needs torch_xla, which is not installed: install the torch_xla of your torch's version"
        ) from None


def _present() -> str:
    """The devices of this machine, in words."""
    kinds = dict.fromkeys(["cuda", "xpu", "mps", _accelerator().type])
    found = [f"{kind}:{k}" for kind in kinds if kind != "cpu" for k in range(device_count(kind))]
    return " and ".join(["cpu", *found])


def _module(kind: str) -> Any:
    return getattr(torch, kind, None)
