"""The IDX reader takes exactly what the format says, and names the file and the fault of anything else."""

import gzip
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.lab.data import DataCorrupt, read_idx
from support.tiny_dataset import to_idx

MOST = 3_000_000
ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
PLAIN = to_idx(ARRAY)
ZIPPED = gzip.compress(PLAIN)


def written(folder: Path, content: bytes) -> Path:
    path = folder / "some-idx3-ubyte"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (3, 28, 28), (2, 1, 3, 1), (0, 28, 28), (2_000_000,)])
def test_reads_what_was_written(tmp_path: Path, shape: tuple[int, ...], pack) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    found = read_idx(written(tmp_path, pack(to_idx(array))), MOST)
    assert found.dtype == np.uint8
    assert found.flags.writeable  # torch.from_numpy warns of arrays that are not
    np.testing.assert_array_equal(found, array)


def test_a_gzip_file_of_several_streams_is_one_file(tmp_path: Path) -> None:
    content = gzip.compress(PLAIN[:20]) + gzip.compress(PLAIN[20:])
    np.testing.assert_array_equal(read_idx(written(tmp_path, content), MOST), ARRAY)


FAULTS = {
    "nothing": (b"", "not an IDX file: it begins with nothing"),
    "a web page": (b"<!DOCTYPE html>", "not an IDX file: it begins with 3c 21 44 4f"),
    "two bytes": (b"\0\0", "not an IDX file"),
    "int32": (b"\0\0\x0c\x01" + PLAIN[4:], "type 0x0c; only uint8"),
    "no axes": (b"\0\0\x08\x00", "without axes"),
    "cut in the header": (PLAIN[:13], "truncated: it ends within the lengths of its 3 axes"),
    "cut in the values": (PLAIN[:-1], "truncated: it ends after 23 of 24 values"),
    "one byte more": (PLAIN + b"\0", "goes on after its 24 values"),
    "too large to be true": (b"\0\0\x08\x03" + b"\xff" * 12 + b"abc", "says that it holds more than 3,000,000 values"),
    "too many axes": (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"x", "a shape that no array can have"),
    "empty and huge": (b"\0\0\x08\x04" + bytes(4) + b"\xff" * 12, "a shape that no array can have"),
    "gzip, cut": (ZIPPED[:-9], "truncated: its gzip stream has no end"),
    "gzip, cut in its checksum": (ZIPPED[:-1], "truncated: its gzip stream has no end"),
    "gzip, only its magic": (ZIPPED[:2], "truncated: its gzip stream has no end"),
    "gzip, wrong checksum": (ZIPPED[:-8] + b"\0" * 8, "corrupt: its gzip stream does not decode (CRC check failed"),
    "gzip, wrong length": (ZIPPED[:-4] + b"\0" * 4, "corrupt: its gzip stream does not decode (Incorrect length"),
    "gzip, corrupt": (ZIPPED[:10] + b"\xff" * 20 + ZIPPED[30:], "corrupt: its gzip stream does not decode"),
    "gzip, rubbish after it": (ZIPPED + b"rubbish", "corrupt: its gzip stream does not decode (Not a gzipped file"),
    "gzip, of something else": (gzip.compress(b"something else"), "not an IDX file"),
    "gzip, of too little": (gzip.compress(PLAIN[:-1]), "truncated: it ends after 23 of 24 values"),
    "gzip, small, of far more": (
        gzip.compress(to_idx(np.zeros(MOST + 1, np.uint8))),
        "says that it holds more than 3,000,000 values",
    ),
    "gzip, of too much": (gzip.compress(PLAIN + b"\0"), "goes on after its 24 values"),
}


@pytest.mark.parametrize(("content", "words"), FAULTS.values(), ids=FAULTS)
def test_anything_else_is_refused_in_one_sentence_that_names_the_file(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataCorrupt) as refusal:
        read_idx(path, MOST)
    assert str(refusal.value).startswith(f"{path} ")
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@given(st.data())
def test_no_damage_leads_to_another_error(folder: Path, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from([PLAIN, ZIPPED])))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(DataCorrupt):
        read_idx(written(folder, bytes(content[: data.draw(st.integers(0, len(content)))])), MOST)
