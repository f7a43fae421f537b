"""Texts of six kinds for language models: stories, and five that differ from them and from each other.

Files are named as their sources name them. None is carried or passed on.
"""

import gzip
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .catalog import Arrays, DataFile, Dataset, Download, register
from .errors import DataCorrupt
from .reading import read_dataset

MOST = 8_000_000  # bytes of a text, unpacked
HOST = "https://raw.githubusercontent.com"


def read_text(path: Path) -> Arrays:
    """The bytes of a text in UTF-8."""
    return _as_array(path, path.read_bytes())


def read_gzipped(path: Path) -> Arrays:
    try:
        with gzip.open(path) as file:
            return _as_array(path, file.read(MOST + 1))
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataCorrupt(f"{path} cannot be unpacked ({error})") from error


def read_leaflets(path: Path) -> Arrays:
    """The texts of a zip file of SGML files, in the order of their names, without markup and empty lines."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = sorted(info.filename for info in archive.infolist() if info.filename.endswith(".sgml"))
            if sum(archive.getinfo(name).file_size for name in members) > MOST:
                raise DataCorrupt(f"{path} unpacks to more than {MOST:,} bytes")
            raw = "\n".join(archive.read(name).decode("latin-1") for name in members)
    except zipfile.BadZipFile as error:
        raise DataCorrupt(f"{path} cannot be unpacked ({error})") from error
    plain = re.sub(r"<[^>]*>|&[a-z]+;", "", raw)
    return _as_array(path, re.sub(r"\s*\n\s*", "\n", plain).encode())


def _as_array(path: Path, data: bytes) -> Arrays:
    if len(data) > MOST:
        raise DataCorrupt(f"{path} holds more than {MOST:,} bytes")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise DataCorrupt(f"{path} holds no text in UTF-8 ({error.reason} at byte {error.start})") from None
    return (np.frombuffer(data, np.uint8),)


class _Source(NamedTuple):
    kind: str
    name: str  # of the file
    size: int
    address: str  # repository, commit and place in it
    digest: str  # of the decoded text
    read: Callable[[Path], Arrays] = read_text


_LIBRARY = "python/cpython/v3.11.7/Lib"
_SOURCES = (
    _Source(
        "stories", "tinystories.txt", 197_290,
        "Niklas6/Mini_GPT/0e9893779c9e2048205ea1339eb588983d72adc1/tinystories.txt",
        "cf0a16711812a73137ceef65c06173989fa3593f36b9f5d264b53dd0926c5081",
    ),
    _Source(
        "shakespeare", "tinyshakespeare.txt", 1_115_394,
        "karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
        "531daa292726bc6d603fadc96259da6b55fee6556c099ef98e80e0415c5ccf88",
    ),
    _Source(
        "wikipedia", "wikitext-2-valid.txt", 1_121_681,
        "pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2/valid.txt",
        "cd25f0446395705f420336d6c6fb0b20ccaac519cc1bd0e5d523dfb2471bfc45",
    ),
    _Source(
        "leaflets", "pil.zip", 1_510_205,
        "nltk/nltk_data/5db857e6f7df11eabb5e5665836db9ec8df07e28/packages/corpora/pil.zip",
        "07eb0d89a6e248e993d5d5d61759e4d882670d447c3b02e3c590eaa1b6c02eb6", read_leaflets,
    ),
    _Source(
        "captions", "multi30k-train.de.gz", 637_044,
        "multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/train.de.gz",
        "41b10ce8db8a25625a7f37ede0cf8cd194359ece8aa9cd0caeefa94214bb6f02", read_gzipped,
    ),
    _Source("python", "argparse.py", 99_661, f"{_LIBRARY}/argparse.py",
            "c91768292f46b8179c4b3ef19c50665e119acb2fc1bdcd3b8e98e92486e0843a"),
    _Source("python", "doctest.py", 106_216, f"{_LIBRARY}/doctest.py",
            "049045eda2b9dd408e1d6415ad91d9d9560c6835d1dea2a3aa5ec852d94f6731"),
    _Source("python", "inspect.py", 124_246, f"{_LIBRARY}/inspect.py",
            "5efacdc90e3166fffaf58e4b62434d1aaa9083b7a4c91d1e3fb580a3a6b434f4"),
    _Source("python", "subprocess.py", 88_448, f"{_LIBRARY}/subprocess.py",
            "47d06551ba5d73b12ac205fa747ca8e1600b08396b99f0c41539bd18cabf1765"),
    _Source("python", "tarfile.py", 106_231, f"{_LIBRARY}/tarfile.py",
            "b924941ac7db8d14bef212d25dc5dfb3f22debd1973922288f7d9748961b0f77"),
    _Source("python", "typing.py", 120_077, f"{_LIBRARY}/typing.py",
            "448b5de3ecf0ef3b7232e10119c4bc4e5db550560933abcb949aa268ed8b6d81"),
)  # fmt: skip

TEXTS = register(
    Dataset(
        "texts",
        "stories, Shakespeare, Wikipedia, package leaflets, German captions and Python source, 5.6 MB",
        files=tuple(DataFile(source.name, source.read, source.digest) for source in _SOURCES),
        downloads=tuple(
            Download(source.name, source.size, (f"{HOST}/{source.address}",), (source.name,)) for source in _SOURCES
        ),
    )
)


def load_texts(root: Path | str | None = None) -> dict[str, str]:
    """The text of each kind from ``root`` (default: the data root)."""
    texts = dict.fromkeys((source.kind for source in _SOURCES), "")
    for source, (data,) in zip(_SOURCES, read_dataset(TEXTS, root), strict=True):
        texts[source.kind] += data.tobytes().decode()
    return texts
