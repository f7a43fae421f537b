"""Memory that steps free is kept by the process, where that can be said to the system."""

import os
import platform
import resource
import subprocess
import sys

import pytest

from bitfreeze.lab.runs import freed_memory
from bitfreeze.lab.runs.freed_memory import keep_freed_memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")

# pieces of different sizes come and go, as in a training step
SCRIPT = """
import resource, sys
from bitfreeze.lab.runs.freed_memory import keep_freed_memory

def step():
    pieces = [b"x" * (n * 2**20) for n in (16, 40, 3, 64)]
    del pieces

if sys.argv[1] == "kept":
    assert keep_freed_memory()
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that a process had to ask the system for in five steps."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    return int(subprocess.check_output([sys.executable, "-c", SCRIPT, how], env=clean, text=True))


@glibc
def test_steps_ask_for_no_memory_again():
    pages = (16 + 40 + 3 + 64) * 2**20 // resource.getpagesize()  # of one step
    assert faults("kept") < pages / 10
    assert faults("given back") > pages


@pytest.mark.parametrize(
    ("name", "value"), [("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000"), ("MALLOC_TRIM_THRESHOLD_", "1000")]
)
def test_what_the_user_says_of_malloc_stands(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory.__wrapped__()


def test_another_system_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(freed_memory.platform, "libc_ver", lambda: ("musl", "1.2"))
    assert not keep_freed_memory.__wrapped__()
