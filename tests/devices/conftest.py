"""Tests on a device that is not the CPU, named by BITFREEZE_TEST_DEVICE: ``standin`` (support/standin), or ``cuda``.

A process that has used torch cannot be given a device afterwards. So these tests have processes of their own:
tests/test_another_device.py starts them on the stand-in. On a machine with a GPU:

    BITFREEZE_TEST_DEVICE=cuda python -m pytest tests/devices
"""

import os

import pytest
import torch

from support import standin

NAME = os.environ.get("BITFREEZE_TEST_DEVICE", "")
collect_ignore_glob = [] if NAME else ["test_*.py"]
if NAME.startswith("standin"):
    standin.load()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device under test, with its number."""
    found = torch.device(NAME)
    return torch.device(found.type, found.index or 0)


@pytest.fixture(scope="session")
def other(device: torch.device) -> torch.device:
    """Another device of the same kind."""
    if torch.get_device_module(device).device_count() < 2:
        pytest.skip(f"this machine has one {device.type}")
    return torch.device(device.type, 1 - min(device.index, 1))


@pytest.fixture
def stand_in(device: torch.device) -> torch.device:
    """The device under test, for tests of what only the stand-in has."""
    if device.type != "standin":
        pytest.skip("a test of the stand-in itself")
    return device
