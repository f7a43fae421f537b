"""A device that is not the CPU, for machines without one: standin.cpp, built once and loaded into this process.

This file is also a plugin: ``BITFREEZE_PLUGINS`` may name it, and then every command has the device.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SOURCE = Path(__file__).parent / "standin.cpp"


class NotBuilt(RuntimeError):
    """There is no compiler, or this version of torch has other headers."""


def build() -> Path:
    """The shared library for this source and this torch, built if it is not there yet."""
    folder = Path(tempfile.gettempdir()) / f"bitfreeze-standin-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    name = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode() + torch.__file__.encode()).hexdigest()[:16]
    library = folder / f"{name}.so"
    if library.exists():
        return library
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise NotBuilt("there is no C++ compiler (g++, or what CXX names)")
    place = Path(torch.__file__).parent
    include = [place / "include", place / "include/torch/csrc/api/include"]
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        made = Path(aside) / library.name
        words = [
            compiler, "-shared", "-fPIC", "-O0", "-w",  "-std=c++17" if _version() < (2, 10) else "-std=c++20",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", *(f"-I{folder}" for folder in include),
            str(SOURCE), "-o", str(made), f"-L{place / 'lib'}", "-lc10", "-ltorch_cpu",
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise NotBuilt(f"torch {torch.__version__} does not build it: {done.stderr.strip().splitlines()[0]}")
        made.replace(library)  # whole or not at all, because two processes may build it
    return library


def load() -> None:
    """Give this process the devices standin:0 and standin:1. Call it before the first backward pass."""
    if hasattr(torch, "standin"):
        return
    torch.ops.load_library(str(build()))
    torch.utils.rename_privateuse1_backend("standin")
    torch._register_device_module("standin", _module())
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)


def set_memory_limit(bytes_of_each: int | None) -> None:
    """Let allocations beyond this fail; None lifts the limit."""
    torch.ops.standin.set_memory_limit(-1 if bytes_of_each is None else bytes_of_each)


def memory_used(index: int = 0) -> int:
    return torch.ops.standin.memory_used(index)


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _module() -> ModuleType:
    """``torch.standin``, with the functions that torch and its users ask of a device's module."""
    ops: Any = torch.ops.standin
    module: Any = ModuleType("torch.standin")

    def index(device: Any) -> int:
        if isinstance(device, int):
            return device
        number = torch.device(device).index
        return ops.current_device() if number is None else number

    def manual_seed_all(seed: int) -> None:
        for each in range(ops.device_count()):
            ops.manual_seed(each, seed % 2**63)

    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: ops.device_count()
    module.current_device = lambda: ops.current_device()
    module.set_device = lambda device: ops.set_device(index(device))
    module.get_rng_state = lambda device="standin": ops.get_rng_state(index(device))
    module.set_rng_state = lambda state, device="standin": ops.set_rng_state(index(device), state.cpu())
    module.manual_seed = lambda seed: ops.manual_seed(ops.current_device(), seed % 2**63)
    module.manual_seed_all = manual_seed_all
    module.synchronize = lambda device=None: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    sys.modules["torch.standin"] = module
    return module


if __name__ not in ("standin", "support.standin"):  # read as a plugin
    load()
