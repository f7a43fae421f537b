"""BLIP on a small transformer that predicts the next character of three kinds of text, one after another: sums, English
sentences, and words written backwards. Lines differ in length and are padded; the padding is masked from the loss, from
the accuracy, and from the likelihood that the Fisher information is taken of.

There is one network with one output layer for all three, nothing tells it what it reads, and BLIP watches all of it.

Nothing tells the texts apart, so the last one is learned at the cost of the others, and the tolerance decides how much
of each. The default keeps both old texts and learns almost nothing of the last; four times as much is a fair share.

    python examples/transformer.py
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP
from bitfreeze.likelihoods import Categorical

PAD, LENGTH, WIDTH, STEPS, BATCH = 0, 22, 32, 120, 32
CHARACTERS = "\0 0123456789+=>.abcdefghijklmnopqrstuvwxyz"


def sums(rng: random.Random) -> str:
    a, b = rng.randrange(10), rng.randrange(10)
    return f"{a}+{b}={a + b}."


def sentences(rng: random.Random) -> str:
    animal, verb = rng.choice(["cat", "dog", "bird"]), rng.choice(["sees", "likes", "eats"])
    return f"the {animal} {verb} {rng.choice(['fish', 'bread', 'me'])}."


def backwards(rng: random.Random) -> str:
    word = "".join(rng.choice("abcd") for _ in range(rng.randrange(2, 6)))
    return f"{word}>{word[::-1]}."


DOMAINS = (sums, sentences, backwards)


def encode(lines: list[str]) -> Tensor:
    """One line a row, padded to the same length."""
    rows = [[CHARACTERS.index(c) for c in line] for line in lines]
    return torch.tensor([row + [PAD] * (LENGTH - len(row)) for row in rows])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(len(CHARACTERS), WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, len(CHARACTERS))

    def forward(self, tokens: Tensor) -> Tensor:
        size = tokens.shape[1]
        causal = torch.triu(torch.full((size, size), -torch.inf), 1)
        return self.out(self.layers(self.token(tokens) + self.place[:size], mask=causal))


def likelihood(model: Transformer, tokens: Tensor) -> Categorical:
    """p(next character) at each position that has one."""
    return Categorical(model(tokens[:, :-1]), mask=tokens[:, 1:] != PAD)


def train(model: Transformer, lines: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        tokens = lines[torch.randint(len(lines), (BATCH,))]
        optimizer.zero_grad()
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: Transformer, lines: Tensor) -> float:
    """Share of characters, padding aside, that are the most likely ones by the model, in percent."""
    counts = lines[:, 1:] != PAD
    return (model(lines[:, :-1]).argmax(-1) == lines[:, 1:])[counts].float().mean().item() * 100


def run(tolerance: float | None, seed: int = 0) -> list[list[float]]:
    """The accuracy on texts 1..t after each text t. A tolerance of None does without BLIP."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = Transformer()
    blip = BLIP(model, tolerance=tolerance)
    attachment = None if tolerance is None else blip.attach()
    matrix, tests = [], []
    for domain in DOMAINS:
        lines = encode([domain(rng) for _ in range(1200)])
        tests.append(lines[1000:])
        train(model, lines[:1000])
        if attachment:
            blip.consolidate(lines[:128].split(64), forward=lambda tokens: likelihood(model, tokens))
        matrix.append([accuracy(model, test) for test in tests])
    if attachment:
        attachment.remove()
    return matrix


def main() -> None:
    torch.set_num_threads(1)
    print("Next character of sums, sentences, words written backwards: test accuracy in percent, seed 0")
    for tolerance in (None, 0.05, 0.2):
        matrix = run(tolerance)
        print("without BLIP" if tolerance is None else f"tolerance {tolerance}")
        for domain, row in zip(DOMAINS, matrix, strict=True):
            print(f"  after {domain.__name__:10}" + "".join(f"{value:8.1f}" for value in row))


if __name__ == "__main__":
    main()
