"""IDX files, the format of MNIST: two zero bytes, type, number of axes, big-endian axis lengths, values."""

import gzip
import zlib
from math import prod
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import DataCorrupt

GZIP_MAGIC = b"\x1f\x8b"
UINT8 = 0x08

Stream: TypeAlias = IO[bytes] | gzip.GzipFile


def read_idx(path: Path, most: int) -> npt.NDArray[np.uint8]:
    """The array of at most ``most`` uint8 values in an IDX file, plain or gzipped. Any other file is refused."""
    with path.open("rb") as file:
        zipped = file.read(2) == GZIP_MAGIC
        file.seek(0)
        if not zipped:
            return _read(file, path, most)
        try:
            with gzip.open(file) as stream:
                return _read(stream, path, most)
        except EOFError:
            raise DataCorrupt(f"{path} is truncated: its gzip stream has no end") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataCorrupt(f"{path} is corrupt: its gzip stream does not decode ({error})") from None


def _read(stream: Stream, path: Path, most: int) -> npt.NDArray[np.uint8]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise DataCorrupt(f"{path} is not an IDX file: it begins with {magic.hex(' ') or 'nothing'}, not with 00 00")
    kind, axes = magic[2], magic[3]
    if kind != UINT8:
        raise DataCorrupt(f"{path} is an IDX file of values of type 0x{kind:02x}; only uint8 (0x08) is read")
    if axes == 0:
        raise DataCorrupt(f"{path} is an IDX file without axes, so it holds no array")
    lengths = stream.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise DataCorrupt(f"{path} is truncated: it ends within the lengths of its {axes} axes")
    shape = tuple(int(n) for n in np.frombuffer(lengths, ">u4"))
    if prod(shape) > most:
        raise DataCorrupt(f"{path} says that it holds more than {most:,} values, the most that are read")
    values = bytearray(stream.read(prod(shape)))  # an array of plain bytes could not be written to
    if len(values) < prod(shape):
        raise DataCorrupt(f"{path} is truncated: it ends after {len(values):,} of {prod(shape):,} values")
    if stream.read(1):  # gzip compares the checksum at the end of the stream only when it is read past its end
        raise DataCorrupt(f"{path} goes on after its {prod(shape):,} values, so it is not the file that it says it is")
    try:
        return np.frombuffer(values, np.uint8).reshape(shape)
    except ValueError as error:
        raise DataCorrupt(f"{path} has a shape that no array can have ({error})") from None
