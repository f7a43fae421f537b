"""The files of a release: what is in them, and that they run where nothing else of the project is. `make test-dist`"""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from bitfreeze import __version__
from support.checkout import ROOT

pytestmark = pytest.mark.release

PACKAGE = ROOT / "src" / "bitfreeze"
LINES = """
import torch
from torch import nn
from bitfreeze import BLIP
import bitfreeze

assert "site-packages" in bitfreeze.__file__, bitfreeze.__file__
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
blip = BLIP(model)
blip.attach()
torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randint(2, (64,))
for task in range(2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x + task), y).backward()
        optimizer.step()
    report = blip.consolidate([(x + task, y)])
print(blip.tasks, bitfreeze.__version__)
"""


def only(pattern: str) -> Path:
    found = list((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"dist/{pattern} must be one file, got {found}; run make dist"
    return found[0]


@pytest.fixture(scope="module")
def wheel() -> Path:
    return only("*.whl")


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"bitfreeze-{__version__}.dist-info/METADATA"))


def sources() -> set[str]:
    """Files of the package, without what Python makes of them."""
    return {
        file.relative_to(PACKAGE.parent).as_posix()
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    about = {name for name in inside if name.startswith(f"bitfreeze-{__version__}.dist-info/")}
    assert inside - about == sources()
    assert "bitfreeze/py.typed" in inside
    assert f"bitfreeze-{__version__}.dist-info/licenses/LICENSE" in about
    assert wheel.stat().st_size < 2_000_000


def test_the_source_archive_holds_what_builds_the_wheel_and_says_what_changed() -> None:
    with tarfile.open(only("*.tar.gz")) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src/" + name for name in sources()} <= inside
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"} <= inside
    assert not [name for name in inside if name.startswith(("tests", "results", "research", "docs", "benchmarks", "."))]


def test_metadata_say_what_a_user_asks(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == ("bitfreeze", __version__, "MIT")
    assert metadata["Requires-Python"] == ">=3.11.4"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(re.split(r"\W", line)[0] for line in needed) == ["numpy", "torch"]
    assert {"lab", "atari", "lightning", "transformers"} <= set(metadata.get_all("Provides-Extra", []))
    assert str(metadata.get_payload()).startswith("# bitfreeze")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment with the wheel and the extra 'lab'."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    # clean, because pip would take a package on PYTHONPATH for installed
    subprocess.run([*install, f"{wheel}[lab]"], env=clean_environment(), check=True)
    return place / "bin"


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BITFREEZE"))}


def run(command: list[str | Path], folder: Path) -> str:
    """What a command prints, in a folder with nothing of the project around it."""
    done = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_three_lines_work_where_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    assert run([installed / "python", "-W", "error", "-c", LINES], tmp_path).split() == ["2", __version__]


def test_the_laboratory_works_where_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    told = run([installed / "bitfreeze", "run", "digits5", "--set", "training.epochs=3"], tmp_path)
    accuracy = float(re.search(r"^\| blip \|.*?\| 1 \| ([\d.]+) \|", told, re.MULTILINE).group(1))
    assert accuracy > 95
    assert "blip" in run([installed / "bitfreeze", "table", "digits5"], tmp_path)
    assert "alt_cifar" in run([installed / "bitfreeze", "list"], tmp_path)
    assert (tmp_path / "runs" / "digits5").is_dir()
