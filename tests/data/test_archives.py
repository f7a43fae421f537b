"""Archives: what would leave the folder, or is no plain file, is refused before anything is written."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bitfreeze.data import DataCorrupt
from bitfreeze.data.archives import MOST_BYTES, unpack
from bitfreeze.data.errors import UnsafeArchive

FILES = {"package/data/a": b"alpha" * 1000, "./package/b.txt": b"beta", "empty": b""}


def make_tar(path: Path, files: dict[str, bytes], *others: tarfile.TarInfo, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in others:
            tar.addfile(member)
    return path


def make_zip(path: Path, files: dict[str, bytes], *others: zipfile.ZipInfo) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
        for member in others:
            file.writestr(member, b"target")
    return path


MAKERS: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "tar": lambda path, files: make_tar(path, files, mode="w"),
    "tar.gz": make_tar,
    "tar.bz2": lambda path, files: make_tar(path, files, mode="w:bz2"),
    "tar.xz": lambda path, files: make_tar(path, files, mode="w:xz"),
    "zip": make_zip,
}


def assert_refused(archive: Path, words: str) -> None:
    folder = archive.parent / "inside" / "folder"
    before = set(archive.parent.rglob("*"))
    with pytest.raises(UnsafeArchive, match=words) as refusal:
        unpack(archive, folder)
    assert str(archive) in str(refusal.value)
    assert set(archive.parent.rglob("*")) == before


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_plain_members_are_written(tmp_path: Path, make) -> None:
    unpack(make(tmp_path / "download.part", FILES), tmp_path / "folder")
    found = [path for path in (tmp_path / "folder").rglob("*") if path.is_file()]
    assert len(found) == len(FILES)
    assert all((tmp_path / "folder" / name).read_bytes() == content for name, content in FILES.items())


@pytest.mark.parametrize(
    "name",
    [
        "../out", "a/../../out", "/out", "//host/out", "..", "a/..", "C:\\out", "C:out", "..\\out", "a\\..\\..\\out",
        "a\\out", "\\\\host\\share\\out",
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [make_tar, make_zip], ids=["tar", "zip"])
def test_members_that_would_escape_are_refused(tmp_path: Path, make, name: str) -> None:
    assert_refused(make(tmp_path / "archive", {**FILES, name: b"x"}), "outside the folder")


@pytest.mark.parametrize("name", ["a\0b", "folder/" + 300 * "x"], ids=["zero", "long"])
def test_names_that_no_file_can_have_are_refused(tmp_path: Path, name: str) -> None:
    member = tarfile.TarInfo("plain")
    member.pax_headers = {"path": name}
    with tarfile.open(tmp_path / "archive", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    assert_refused(tmp_path / "archive", "a name that no file can have")


def tar_member(kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo("package/odd")
    member.type, member.linkname = kind, target
    return member


TAR_ODDITIES = {
    "symbolic link out": tar_member(tarfile.SYMTYPE, "/etc/passwd"),
    "symbolic link inside": tar_member(tarfile.SYMTYPE, "data/a"),
    "hard link": tar_member(tarfile.LNKTYPE, "package/data/a"),
    "character device": tar_member(tarfile.CHRTYPE),
    "block device": tar_member(tarfile.BLKTYPE),
    "pipe": tar_member(tarfile.FIFOTYPE),
    "sparse file": tar_member(tarfile.GNUTYPE_SPARSE),
}


@pytest.mark.parametrize("member", TAR_ODDITIES.values(), ids=TAR_ODDITIES)
def test_links_and_devices_in_tar_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    assert_refused(make_tar(tmp_path / "archive", FILES, member), "'package/odd' in it is a link, a device")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_zip_are_refused(tmp_path: Path, kind: int) -> None:
    member = zipfile.ZipInfo("odd")
    member.external_attr = (kind | 0o777) << 16
    assert_refused(make_zip(tmp_path / "archive", FILES, member), "'odd' in it is a link, a device")


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    member = tarfile.TarInfo("huge")
    member.size = MOST_BYTES + 1
    with archive.open("wb") as file:
        file.write(member.tobuf(tarfile.PAX_FORMAT))
        file.seek(MOST_BYTES + (1 << 20))  # a hole: takes no room
        file.write(bytes(1024))
    assert_refused(archive, "it unpacks to 17,179,869,185 bytes")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("damage", ["cut", "scrambled"])
def test_broken_archives_are_named(tmp_path: Path, make, damage: str) -> None:
    archive = make(tmp_path / "archive", FILES)
    content = bytearray(archive.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[10:400] = bytes(390)
    archive.write_bytes(content)
    with pytest.raises(DataCorrupt, match="archive"):
        unpack(archive, tmp_path / "folder")


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<html>")
    with pytest.raises(DataCorrupt, match="page is no archive"):
        unpack(tmp_path / "page", tmp_path / "folder")


def test_a_file_that_is_also_a_folder_is_named(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "archive", {"a": b"1", "a/b": b"2"})
    with pytest.raises(DataCorrupt, match="a file and a folder of the same name"):
        unpack(archive, tmp_path / "folder")
