"""Precision of forward passes: float32, or bfloat16 by autocast.

Weights, gradients, optimizers, Fishers and heads are in float32 either way.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

Precision = Annotated[
    Literal["float32", "bf16"], "forward passes of training and evaluation; bf16 takes less time where it is built in"
]
Passes = Callable[[], AbstractContextManager[Any]]  # a context for each forward pass
PRECISIONS = ("float32", "bf16")
CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86 and ARM, in /proc/cpuinfo


def passes_in(precision: str, device: torch.device) -> Passes:
    """The context that forward passes of this precision run in."""
    if precision == "float32":
        return nullcontext
    return lambda: torch.autocast(device.type, torch.bfloat16)


def in_full(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The output of a layer without autocast, in float32 where ``x`` has less."""
    result: Tensor
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            result = layer(x.float() if x.dtype == torch.bfloat16 else x)
    else:
        result = layer(x)
    return result


def require_able(precision: str, device: torch.device) -> None:
    """Raise a ValueError where the device cannot compute in this precision, and warn where it would be slow."""
    if precision == "float32":
        return
    if not _has_autocast(device):
        raise ValueError(
            f"training.precision must be float32 on {device.type}, got {precision}; torch {torch.__version__} has no "
            "autocast to bfloat16 there"
        )
    if device.type == "cpu" and not computes_in_bf16(_cpu_flags()):
        warnings.warn(
            "training.precision=bf16 is slower than float32 on this processor, which has no arithmetic in bfloat16; "
            "leave it out, unless its figures are to be compared",
            stacklevel=2,
        )


def computes_in_bf16(flags: set[str]) -> bool:
    """Whether a processor with these flags has arithmetic in bfloat16; assumed where there are none to read."""
    return not flags or bool(flags & CPU_FLAGS)


def _cpu_flags(file: Path = Path("/proc/cpuinfo")) -> set[str]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()[2:]}


def _has_autocast(device: torch.device) -> bool:
    """Whether autocast does what it is told there: on some devices it only warns, and computes in float32."""
    if not torch.amp.is_autocast_available(device.type):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast(device.type, torch.bfloat16):
            return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.bfloat16
