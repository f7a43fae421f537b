"""Llama as stories15M has it: blocks of attention and a gated layer, and an embedding that is the last layer too."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import BEGIN, LlamaShape, PretrainedLlama, load_stories15m
from ..precision import in_full
from .multihead import MultiHead

Trained = Literal["linear", "all"]


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def rotated(x: Tensor) -> Tensor:
    """Rotate each pair of neighbours of [n, heads, positions, size] by an angle that grows with the position."""
    positions, size = x.shape[-2:]
    rates = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float32, device=x.device) / size)
    angles = torch.arange(positions, dtype=torch.float32, device=x.device)[:, None] * rates
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), -1).flatten(-2)


class Block(nn.Module):
    """Attention and a gated layer, each added to its input."""

    def __init__(self, shape: LlamaShape) -> None:
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
        y: Tensor = x + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return y

    def attention(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class Llama(nn.Module):
    """Maps tokens [n, positions] to features [n, positions, width]."""

    embedding: Tensor

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.task = 0
        self.embedding = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = RootMeanSquareNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.norm(self.blocks(F.embedding(tokens, self.embedding)))
        return y

    def scores(self, features: Tensor) -> Tensor:
        """Scores of the next token, from features [..., width]."""
        return F.linear(features, self.embedding)

    @torch.no_grad()
    def write(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        """Texts [count, length] drawn from the model, each from the token of its beginning."""
        tokens = torch.full((count, 1), BEGIN)
        while tokens.shape[1] < length:
            odds = self.scores(self(tokens)[:, -1]).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(odds, 1, generator=generator)], 1)
        return tokens

    def load_published(self, weights: dict[str, Tensor]) -> None:
        """Take the weights of the published file."""
        own = {"embedding": weights["embedding"], "norm.weight": weights["norm"]}
        for name in self.state_dict().keys() - own.keys():
            _, layer, kind, _ = name.split(".")
            own[name] = weights[kind][int(layer)]
        self.load_state_dict(own)

    def hold_all_but_linear(self) -> None:
        """Turn what is not a linear layer's weight into buffers, which no method trains or looks at."""
        for module in self.modules():
            if not isinstance(module, nn.Linear):
                for name, parameter in list(module.named_parameters(recurse=False)):
                    delattr(module, name)
                    module.register_buffer(name, parameter.detach())


class LanguageModel(MultiHead):
    """A Llama without heads: all tasks share its scores [n, positions, vocabulary] of the next token."""

    backbone: Llama

    def __init__(self, backbone: Llama) -> None:
        super().__init__(backbone, 0, ())

    def scores(self, features: Tensor, task: int) -> Tensor:
        return in_full(self.backbone.scores, features)

    def of_task(self, task: int) -> list[nn.Parameter]:
        return []


def pretrained_llama(published: PretrainedLlama) -> Llama:
    """The Llama of a published file."""
    backbone = Llama(published.shape)
    backbone.load_published(published.weights)
    return backbone


def stories15m(
    shape: Sequence[int],
    classes: Sequence[int],
    train: Annotated[Trained, "weights that are trained: those of linear layers, or the embedding and norms too"] = (
        "linear"
    ),
) -> MultiHead:
    """The Llama with its weights."""
    published = load_stories15m()
    if set(classes) != {published.shape.vocabulary}:
        raise ValueError(
            f"stories15m needs texts in its own {published.shape.vocabulary:,} tokens, got {max(classes):,}; the "
            "stream must encode them by the tokenizer of `bitfreeze data get stories15m`"
        )
    if len(shape) != 1 or shape[0] > published.shape.context:
        raise ValueError(
            f"inputs of stories15m must be at most {published.shape.context} tokens, got shape {tuple(shape)}; "
            "lower stream.length"
        )
    backbone = pretrained_llama(published)
    if train == "linear":
        backbone.hold_all_but_linear()
    return LanguageModel(backbone)
