"""The tokenizer of Llama: pairs of neighbours are merged by their scores, as SentencePiece's BPE does."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

BEGIN, FIRST_BYTE, FIRST_PIECE = 1, 3, 259  # tokens: begin of a text, of the byte 0, after all bytes


class Tokenizer:
    """Merges the pair of neighbours with the best score until no pair is a piece. What is left is spelled in bytes.

    Args:
        pieces: text of each token; a space stands for itself.
        scores: score of each token.
    """

    def __init__(self, pieces: Sequence[str], scores: Sequence[float]) -> None:
        self.ids = {piece: i for i, piece in enumerate(pieces) if i >= FIRST_PIECE}
        self.pieces = pieces
        self.scores = scores
        odd = next((piece for piece in self.ids if " " in piece.lstrip(" ")), None)
        if odd is not None:
            raise ValueError(f"a piece of the tokenizer must have spaces in front only, got {odd!r}")
        self._of_chunk = cache(self._encode_chunk)  # no piece has a space behind a letter: chunks do not touch

    def __len__(self) -> int:
        return len(self.scores)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with the token of its beginning."""
        return [BEGIN, *(token for chunk in re.findall(r" *[^ ]+| +", " " + text) for token in self._of_chunk(chunk))]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, without the space that ``encode`` puts in front.

        Tokens that mark beginnings and ends have no text, and broken characters are replaced.
        """
        spelled = b"".join(self._bytes_of(token) for token in tokens)
        return spelled.decode(errors="replace").removeprefix(" ")

    def _bytes_of(self, token: int) -> bytes:
        if token >= FIRST_PIECE:
            return self.pieces[token].encode()
        return bytes([token - FIRST_BYTE]) if token >= FIRST_BYTE else b""

    def _encode_chunk(self, chunk: str) -> list[int]:
        parts = list(chunk)
        while True:
            merged = [self.ids.get(a + b) for a, b in pairwise(parts)]
            known = [(self.scores[token], -i) for i, token in enumerate(merged) if token is not None]
            if not known:
                return [token for part in parts for token in self._tokens_of(part)]
            i = -max(known)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    def _tokens_of(self, part: str) -> list[int]:
        token = self.ids.get(part)
        return [FIRST_BYTE + byte for byte in part.encode()] if token is None else [token]
