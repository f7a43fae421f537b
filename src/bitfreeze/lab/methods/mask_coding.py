"""Binary masks in little memory: a bit an entry, or a Huffman code over the masks of several tasks."""

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

BITS = 8


def packed(mask: Tensor) -> Tensor:
    """A boolean mask as bytes, eight entries in each, the first in the lowest bit."""
    flat = mask.flatten().to(torch.uint8)
    rows = torch.cat([flat, flat.new_zeros(-len(flat) % BITS)]).reshape(-1, BITS)
    return (rows << _places(flat)).sum(1, dtype=torch.uint8)


def unpacked(packed: Tensor, shape: torch.Size) -> Tensor:
    """The boolean mask of this shape that ``packed`` was given."""
    bits = packed[:, None] >> _places(packed) & 1
    return bits.flatten()[: shape.numel()].reshape(shape).bool()


def _places(like: Tensor) -> Tensor:
    return torch.arange(BITS, dtype=torch.uint8, device=like.device)


def huffman_bytes(masks: Sequence[Tensor]) -> int:
    """Bytes of a Huffman code for masks of one shape, taken together. An entry is a symbol, with a bit of each mask.

    The table of the code counts too, with a byte for the length of each symbol's word.
    """
    symbols = torch.zeros(masks[0].shape, dtype=torch.int64, device=masks[0].device)
    for place, mask in enumerate(masks):
        symbols |= mask.long() << place
    counts = torch.bincount(symbols.flatten(), minlength=2 ** len(masks))
    return -(-huffman_bits(counts.tolist()) // 8) + len(counts)


def huffman_bits(counts: Sequence[int]) -> int:
    """Length of the shortest prefix code of a text with these counts of its symbols: the sum over all merged pairs."""
    heap = [count for count in counts if count]
    if len(heap) == 1:
        return heap[0]  # a lone symbol still needs a bit each time
    heapq.heapify(heap)
    bits = 0
    while len(heap) > 1:
        pair = heapq.heappop(heap) + heapq.heappop(heap)
        bits += pair
        heapq.heappush(heap, pair)
    return bits
