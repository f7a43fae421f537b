"""The tests of tests/devices, each file in a process of its own, on a device that is not the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import standin
from support.checkout import ROOT

FILES = sorted((ROOT / "tests" / "devices").glob("test_*.py"))


@pytest.mark.skipif("BITFREEZE_TEST_DEVICE" in os.environ, reason="these tests are running already")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_a_device_that_is_not_the_cpu(file: Path) -> None:
    try:
        standin.build()
    except standin.NotBuilt as reason:
        pytest.skip(f"the stand-in for a GPU is not built: {reason}")
    words = [sys.executable, "-m", "pytest", str(file), "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "BITFREEZE_TEST_DEVICE": "standin"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 0
