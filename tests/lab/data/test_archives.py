"""Archives: plain files and folders inside the folder, no more than is known of them, or nothing at all."""

import errno
import gzip
import io
import os
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.lab.data import Contents, DataCorrupt
from bitfreeze.lab.data.archives import unpack
from bitfreeze.lab.data.limits import SLACK

FILES = {"package/data/a": b"alpha" * 1000, "./package/b.txt": b"beta", "empty": b""}
KNOWN = Contents(bytes=5004, members=4)


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
    "zip": make_zip,
}


def assert_refused(archive: Path, words: str, known: Contents = KNOWN) -> None:
    folder = archive.parent / "inside" / "folder"
    before = set(archive.parent.rglob("*"))
    with pytest.raises(DataCorrupt, match=words) as refusal:
        unpack(archive, folder, known)
    assert str(archive) in str(refusal.value)
    assert set(archive.parent.rglob("*")) == before


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_plain_members_are_written(tmp_path: Path, make) -> None:
    unpack(make(tmp_path / "download.part", FILES), tmp_path / "folder", KNOWN)
    found = [path for path in (tmp_path / "folder").rglob("*") if path.is_file()]
    assert len(found) == len(FILES)
    assert all((tmp_path / "folder" / name).read_bytes() == content for name, content in FILES.items())


ESCAPES = ["../out", "a/../../out", "/out", "//host/out", "..", "a/..", "C:\\out", "..\\out", "\\\\host\\share\\out"]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("make", [make_tar, make_zip], ids=["tar", "zip"])
def test_nothing_is_written_outside_the_folder(tmp_path: Path, make, name: str) -> None:
    """A member with such a name is refused, or stands inside the folder under another name."""
    folder = tmp_path / "inside" / "folder"
    archive = make(tmp_path / "archive", {name: b"x"})
    with suppress(DataCorrupt):
        unpack(archive, folder, KNOWN)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(folder)] == [archive]


@pytest.mark.parametrize("name", ["../out", "a/../../out"])
def test_a_member_outside_the_folder_is_refused_before_any_is_written(tmp_path: Path, name: str) -> None:
    assert_refused(make_tar(tmp_path / "archive", {**FILES, name: b"x"}), "outside the destination")


@pytest.mark.parametrize("name", ["a\0b", "folder/" + 300 * "x"], ids=["zero", "long"])
def test_names_that_no_file_can_have_are_refused(tmp_path: Path, name: str) -> None:
    member = tarfile.TarInfo("plain")
    member.pax_headers = {"path": name}
    with tarfile.open(tmp_path / "archive", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    with pytest.raises(DataCorrupt, match="archive cannot be unpacked"):
        unpack(tmp_path / "archive", tmp_path / "folder", KNOWN)


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
}


@pytest.mark.parametrize("member", TAR_ODDITIES.values(), ids=TAR_ODDITIES)
def test_links_and_devices_in_tar_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    assert_refused(make_tar(tmp_path / "archive", FILES, member), "'package/odd' is a link or a device")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_zip_become_plain_files(tmp_path: Path, kind: int) -> None:
    member = zipfile.ZipInfo("odd")
    member.external_attr = (kind | 0o777) << 16
    unpack(make_zip(tmp_path / "archive", {}, member), tmp_path / "folder", KNOWN)
    assert stat.S_ISREG((tmp_path / "folder" / "odd").lstat().st_mode)
    assert (tmp_path / "folder" / "odd").read_bytes() == b"target"


# no more than is known


def lying_zip(path: Path, files: dict[str, bytes]) -> Path:
    """Says in its directory that each file has ten bytes."""
    content = bytearray(make_zip(path, files).read_bytes())
    start = content.index(b"PK\x01\x02")
    content[start + 24 : start + 28] = struct.pack("<I", 10)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_archive_of_a_little_more_is_unpacked_and_of_far_more_refused(tmp_path: Path, make) -> None:
    most = int(SLACK * KNOWN.bytes)
    unpack(make(tmp_path / "more", {"a": bytes(most)}), tmp_path / "folder", KNOWN)
    assert (tmp_path / "folder" / "a").stat().st_size == most
    assert_refused(make(tmp_path / "far-more", {"a": bytes(most + 1)}), f"unpacks to more than {most:,} bytes")
    halves = {"a": bytes(most // 2), "b": bytes(most // 2 + 2)}
    assert_refused(make(tmp_path / "together", halves), f"unpacks to more than {most:,} bytes")


def test_a_zip_file_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="Bad CRC-32"):
        unpack(lying_zip(tmp_path / "archive", {"a": bytes(10_000_000)}), tmp_path / "folder", KNOWN)
    assert sum(path.stat().st_size for path in (tmp_path / "folder").rglob("*")) <= 10


def crowded_tar(path: Path, count: int) -> Path:
    path.write_bytes(gzip.compress(tarfile.TarInfo("a").tobuf() * count + bytes(1024), compresslevel=1))
    return path


def crowded_zip(path: Path, count: int) -> Path:
    """One member, which the directory lists again and again."""
    content = make_zip(path, {"a": b""}).read_bytes()
    start, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    entries = content[start:end] * count
    path.write_bytes(content[:start] + entries + content[end : end + 12] + struct.pack("<IIH", len(entries), start, 0))
    return path


@pytest.mark.parametrize("make", [crowded_tar, crowded_zip], ids=["tar", "zip"])
def test_300_000_empty_members_are_refused(tmp_path: Path, make) -> None:
    unpack(make(tmp_path / "right", 3), tmp_path / "folder", KNOWN)
    known = Contents(bytes=200_000_000, members=1000)
    assert_refused(make(tmp_path / "archive", 300_000), "it has more than 1,250 members", known)


def gzipped_zeros(path: Path, head: bytes, megabytes: int) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    return path


def headers() -> Iterable[tuple[str, bytes]]:
    """The beginnings of tar files that would go on for 200 MB: as a member, and as a header of one."""
    for kind in (tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        member = tarfile.TarInfo("huge")
        member.type, member.size = kind, 200 << 20
        yield kind.decode(), member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("head", [head for _, head in headers()], ids=[kind for kind, _ in headers()])
def test_a_small_file_that_decompresses_to_far_more_is_refused_early(tmp_path: Path, head: bytes) -> None:
    archive = gzipped_zeros(tmp_path / "archive", head, 200)
    assert archive.stat().st_size < 1_000_000
    tracemalloc.start()
    try:
        assert_refused(archive, "unpacks to more than")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


# broken archives


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
    with pytest.raises(DataCorrupt, match="archive cannot be unpacked"):
        unpack(archive, tmp_path / "folder", KNOWN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@given(st.data())
def test_no_damage_leads_to_another_error(folder: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(MAKERS)))
    content = bytearray(MAKERS[kind](folder / kind, FILES).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "archive").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(DataCorrupt):
        unpack(folder / "archive", folder / "unpacked" / os.urandom(8).hex(), KNOWN)


def test_a_member_of_negative_size_does_not_hold_anybody_up(tmp_path: Path) -> None:
    """Its successor is the member before it: some versions of tarfile would read the two forever."""
    header = bytearray(tarfile.TarInfo("a").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + b"\xfc\x00"  # -1024 bytes
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "archive").write_bytes(tarfile.TarInfo("b").tobuf() + bytes(header) + bytes(1024))
    with pytest.raises(DataCorrupt):
        unpack(tmp_path / "archive", tmp_path / "folder", KNOWN)


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<html>")
    with pytest.raises(DataCorrupt, match="page cannot be unpacked"):
        unpack(tmp_path / "page", tmp_path / "folder", KNOWN)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_file_that_is_also_a_folder_is_named(tmp_path: Path, make) -> None:
    archive = make(tmp_path / "archive", {"a": b"1", "a/b": b"2"})
    with pytest.raises(DataCorrupt, match="archive cannot be unpacked"):
        unpack(archive, tmp_path / "folder", KNOWN)


def test_a_full_disk_is_not_blamed_on_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "extractall", full)
    with pytest.raises(OSError, match="No space left on device"):
        unpack(make_tar(tmp_path / "archive", FILES), tmp_path / "folder", KNOWN)
