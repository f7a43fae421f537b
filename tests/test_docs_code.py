"""Code and commands on the pages of docs/ run as they are written, each page from top to bottom in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page for page in (ROOT / "docs").rglob("*.md") if re.search(r"^```(python|bash)", page.read_text(), re.M)
)
BLOCK = re.compile(r'^```(python|bash)(?: title="([\w.]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_page_runs_from_top_to_bottom(page, tmp_path):
    """A block with a title is a file, commands are typed, and the rest is one Python session."""
    environment = _environment(tmp_path)
    session = []
    for kind, title, text in BLOCK.findall(page.read_text()):
        if title:
            (tmp_path / title).write_text(text)
        elif kind == "python":
            session.append(text)
        else:
            for line in text.strip().splitlines():
                _run(["sh", "-c", line], environment, tmp_path)
    if session:
        (tmp_path / "session.py").write_text("\n".join(session))
        _run([sys.executable, "-W", "error", "session.py"], environment, tmp_path)


def _environment(folder: Path) -> dict[str, str]:
    """`bitfreeze` is this interpreter's, with one thread, and keeps its runs here."""
    command = folder / "bin" / "bitfreeze"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bitfreeze "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "BITFREEZE_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}


def _run(command: list[str], environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
