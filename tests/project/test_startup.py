"""Commands and imports start quickly: what needs torch is imported where it is used."""

import os
import subprocess
import sys

import pytest

import bitfreeze
from bitfreeze import lab

HELP = "import sys; sys.argv = ['bitfreeze', '--help']; from bitfreeze.lab.cli.main import main; main()"


def processor_seconds(code: str, processes: int = 3) -> float:
    """Least user and system time of a new Python that runs the code."""
    found = []
    for _ in range(processes):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        found.append(sum(after[2:4]) - sum(before[2:4]))  # of children
    return min(found)


def test_importing_takes_less_than_0_3_seconds_over_torch() -> None:
    torch = processor_seconds("import torch")
    assert processor_seconds("from bitfreeze import BLIP") - torch < 0.3


def test_help_takes_less_than_a_second() -> None:
    pytest.importorskip("tyro", reason="needs the extra 'lab'")
    assert processor_seconds(HELP) < 1


@pytest.mark.parametrize(
    "code", ["import bitfreeze", "import bitfreeze.lab", f"try:\n    {HELP}\nexcept SystemExit:\n    pass"]
)
def test_torch_is_not_imported_before_it_is_needed(code: str) -> None:
    pytest.importorskip("tyro", reason="needs the extra 'lab'")
    look = f"{code}\nimport sys\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", look], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.parametrize("module", [bitfreeze, lab])
def test_every_public_name_is_there_and_no_other(module) -> None:
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'BLIPP'"):
        module.BLIPP  # noqa: B018


def test_modules_of_the_library_are_there_after_importing_it() -> None:
    code = "import bitfreeze; bitfreeze.fisher.estimate, bitfreeze.bits.quantize, bitfreeze.likelihoods.Categorical"
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run([sys.executable, "-c", "from bitfreeze import *; BLIP, likelihoods.Categorical"], check=True)


@pytest.mark.parametrize("name", ["bitfreeze.lab.face.training", "bitfreeze.lab.data", "bitfreeze.lab.cli.datasets"])
def test_any_module_can_be_imported_first(name: str) -> None:
    pytest.importorskip("tyro", reason="needs the extra 'lab'")
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
