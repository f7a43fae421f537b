"""A tiny Llama with a tokenizer, and texts, in the files that the readers of the laboratory take."""

import gzip
import random
import struct
import zipfile
from pathlib import Path

import torch

from bitfreeze.lab.data.stories15m import FILE, HEADER, PIECE, LlamaShape
from bitfreeze.lab.data.tokenizer import FIRST_PIECE

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "his", "hat")
LETTERS = sorted({letter for word in WORDS for letter in word} | {" "})
MERGES = (" t", "he", " the", "at", " c", " cat", " a", "sa", " s", "an", " an", " and", "hi", "  ")
PIECES = (*LETTERS, *MERGES)
SHAPE = LlamaShape(
    width=16, hidden=24, layers=2, heads=2, key_heads=2, vocabulary=FIRST_PIECE + len(PIECES), context=32
)


def tiny_weights(shape: LlamaShape = SHAPE, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of each kind; norms near 1."""
    drawn = torch.Generator().manual_seed(seed)
    found = {kind: 0.3 * torch.randn(size, generator=drawn) for kind, size in shape.weights().items()}
    for kind in ("before_attention", "before_gate", "norm"):
        found[kind] = 1 + 0.1 * found[kind]
    return found


def tiny_pieces() -> list[tuple[str, float]]:
    """Text and score of each token. Later merges have a lower score, as in a trained tokenizer."""
    special = [(f"<{k}>", 0.0) for k in range(FIRST_PIECE)]
    return [*special, *((piece, -float(k)) for k, piece in enumerate(PIECES))]


def llama_file(shape: LlamaShape = SHAPE, seed: int = 0) -> bytes:
    data = bytearray(HEADER.pack(*shape))
    for values in tiny_weights(shape, seed).values():
        data += values.numpy().astype("<f4").tobytes()
    data += struct.pack("<i", max(len(piece) for piece, _ in tiny_pieces()))
    for piece, score in tiny_pieces():
        data += PIECE.pack(score, len(piece.encode())) + piece.encode()
    return bytes(data)


def words(count: int, seed: int) -> str:
    """A text of so many words."""
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) for _ in range(count))


def write_llama(root: Path) -> None:
    """Put the tiny Llama below a data root."""
    (root / "stories15m").mkdir()
    (root / "stories15m" / FILE).write_bytes(llama_file())


def write_texts(root: Path) -> None:
    """Put a short text of each kind below a data root."""
    folder = root / "texts"
    folder.mkdir()
    stories = "\n\n".join(f"Once upon a time {words(60, k)}" for k in range(200))
    (folder / "tinystories.txt").write_text(stories)
    (folder / "tinyshakespeare.txt").write_text(words(3000, 1))
    (folder / "wikitext-2-valid.txt").write_text(words(3000, 2))
    with zipfile.ZipFile(folder / "pil.zip", "w") as archive:
        archive.writestr("pil/b.sgml", f"<p>{words(1500, 3)}</p>")
        archive.writestr("pil/a.sgml", f"<h1>{words(1500, 4)}</h1>\n\n\n &pound;end")
        archive.writestr("pil/README", "not a leaflet")
    (folder / "multi30k-train.de.gz").write_bytes(gzip.compress(words(3000, 5).encode()))
    for k, name in enumerate(("argparse", "doctest", "inspect", "subprocess", "tarfile", "typing")):
        (folder / f"{name}.py").write_text(words(500, 10 + k))
