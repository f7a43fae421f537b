"""Packed masks come back, and Huffman's length is that of a code that is really made."""

from collections import Counter

import pytest
import torch

from bitfreeze.lab.methods.mask_coding import huffman_bits, huffman_bytes, packed, unpacked


@pytest.mark.parametrize("shape", [(1,), (8,), (9,), (3, 5), (4, 3, 3, 3), (0,)])
def test_a_packed_mask_comes_back_and_takes_a_bit_an_entry(shape):
    torch.manual_seed(0)
    mask = torch.rand(shape) < 0.4
    assert torch.equal(unpacked(packed(mask), mask.shape), mask)
    assert packed(mask).nbytes == -(-mask.numel() // 8)


def words(counts: dict[int, int]) -> dict[int, str]:
    """Huffman's code, made by merging the two rarest groups of symbols again and again."""
    groups = [(count, {symbol: ""}) for symbol, count in counts.items()]
    while len(groups) > 1:
        groups.sort(key=lambda group: group[0])
        (a, left), (b, right) = groups[:2]
        merged = {s: "0" + word for s, word in left.items()} | {s: "1" + word for s, word in right.items()}
        groups = [(a + b, merged), *groups[2:]]
    return groups[0][1]


@pytest.mark.parametrize("masks", [1, 2, 5, 7])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_length_is_that_of_the_coded_text_which_can_be_read_back(masks, share):
    torch.manual_seed(masks)
    drawn = [torch.rand(40, 30) < share for _ in range(masks)]
    entries = torch.stack(drawn, -1).reshape(1200, -1).tolist()
    text = [sum(bit << place for place, bit in enumerate(bits)) for bits in entries]
    code = words(Counter(text))
    written = "".join(code[symbol] for symbol in text)
    reader, read, word = {w: s for s, w in code.items()}, [], ""
    for bit in written:
        word += bit
        if word in reader:
            read.append(reader[word])
            word = ""
    assert read == text
    assert huffman_bits(list(Counter(text).values())) == len(written)
    assert huffman_bytes(drawn) == -(-len(written) // 8) + 2**masks


def test_counts_by_hand():
    assert huffman_bits([5, 0, 0]) == 5
    assert huffman_bits([1, 1]) == 2
    assert huffman_bits([4, 2, 1, 1]) == 4 * 1 + 2 * 2 + 1 * 3 + 1 * 3
