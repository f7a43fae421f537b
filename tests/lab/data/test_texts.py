"""The readers of texts, on made files."""

import gzip
import zipfile
from dataclasses import replace

import pytest

from bitfreeze.lab.data import DataCorrupt, DataMissing, load_texts, texts
from bitfreeze.lab.data.texts import TEXTS, read_gzipped, read_leaflets, read_text
from support.tiny_llama import words, write_texts


def text_of(arrays):
    (data,) = arrays
    return data.tobytes().decode()


@pytest.mark.filterwarnings("ignore:texts")
def test_each_kind_is_read_and_files_of_a_kind_follow_each_other(tmp_path, monkeypatch):
    files = tuple(replace(file, digest=None) for file in TEXTS.files)
    monkeypatch.setattr(texts, "TEXTS", replace(TEXTS, files=files))
    write_texts(tmp_path)
    found = load_texts(tmp_path)
    assert list(found) == ["stories", "shakespeare", "wikipedia", "leaflets", "captions", "python"]
    assert found["captions"] == words(3000, 5)
    assert found["python"] == "".join(words(500, 10 + k) for k in range(6))
    assert found["leaflets"] == f"{words(1500, 4)}\nend\n{words(1500, 3)}"


def test_missing_texts_name_the_command_that_gets_them(tmp_path):
    with pytest.raises(DataMissing, match=r"texts needs tinystories.txt, .* run `bitfreeze data get texts`"):
        load_texts(tmp_path)


def test_markup_and_empty_lines_are_taken_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.sgml", "<title>One\n\n  \nTwo &amp;</title>")
    assert text_of(read_leaflets(tmp_path / "x.zip")) == "One\nTwo "


def test_files_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataCorrupt, match=r"holds no text in UTF-8"):
        read_text(path)
    for read in (read_gzipped, read_leaflets):
        with pytest.raises(DataCorrupt, match=r"cannot be unpacked"):
            read(path)


def test_a_text_that_unpacks_to_too_much_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b" " * (texts.MOST + 1)))
    with pytest.raises(DataCorrupt, match=r"holds more than 8,000,000 bytes"):
        read_gzipped(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.sgml", " " * (texts.MOST + 1))
    with pytest.raises(DataCorrupt, match=r"unpacks to more than 8,000,000 bytes"):
        read_leaflets(path)
