"""The tokenizer against merging the whole text at once, as llama2.c does it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitfreeze.lab.data.tokenizer import BEGIN, FIRST_BYTE, FIRST_PIECE, Tokenizer
from support.tiny_llama import PIECES, tiny_pieces

TEXTS, SCORES = zip(*tiny_pieces(), strict=True)
TOKENIZER = Tokenizer(TEXTS, SCORES)


def merged_at_once(text: str) -> list[int]:
    """The best pair of the whole text is merged, again and again. What has no piece is bytes from the start."""
    ids = {piece: FIRST_PIECE + k for k, piece in enumerate(PIECES)}
    found: list[int | str] = []
    for letter in " " + text:
        found += [letter] if letter in ids else [FIRST_BYTE + byte for byte in letter.encode()]
    while True:
        best = max(
            (
                (SCORES[ids[a + b]], -k)
                for k, (a, b) in enumerate(pairwise(found))
                if isinstance(a, str) and isinstance(b, str) and a + b in ids
            ),
            default=None,
        )
        if best is None:
            return [BEGIN, *(part if isinstance(part, int) else ids[part] for part in found)]
        k = -best[1]
        found[k : k + 2] = [found[k] + found[k + 1]]  # type: ignore[operator]


@given(st.text("thecas nd  é\n", max_size=40))
def test_it_encodes_as_merging_the_whole_text_does(text):
    assert TOKENIZER.encode(text) == merged_at_once(text)


@given(st.text(max_size=40))
def test_a_text_survives_the_way_there_and_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_half_a_character_is_replaced():
    assert TOKENIZER.decode([BEGIN, *TOKENIZER.encode("cat é")[1:-1]]) == "cat \ufffd"


def test_what_has_no_piece_is_spelled_in_bytes():
    assert TOKENIZER.encode("é")[-2:] == [FIRST_BYTE + byte for byte in "é".encode()]


def test_words_that_are_pieces_are_one_token_each():
    assert TOKENIZER.encode("the cat") == [BEGIN, TEXTS.index(" the"), TEXTS.index(" cat")]


def test_a_piece_with_a_space_behind_a_letter_is_refused():
    with pytest.raises(ValueError, match="must have spaces in front only, got 'a b'"):
        Tokenizer([*TEXTS, "a b"], [*SCORES, 0.0])
