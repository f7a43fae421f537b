"""Small networks with what the rules for layers do not cover."""

from math import prod

import torch
import torch.nn.functional as F
from torch import nn

from support.truth import randomise

STEPS, WIDTH, TOKENS = 4, 8, 5


class Pooled(nn.Module):
    """A block between data ``[n, l, d]`` and class logits; ``time_first``: the block wants ``[l, n, d]``."""

    def __init__(self, block, time_first=False, width=WIDTH):
        super().__init__()
        self.block, self.time_first, self.head = block, time_first, nn.Linear(width, 3)

    def forward(self, x):
        h = self.run(x.transpose(0, 1) if self.time_first else x)
        return self.head(torch.tanh(h.transpose(0, 1) if self.time_first else h).mean(1))

    def run(self, x):
        return self.block(x)


class Attention(Pooled):
    def run(self, x):
        return self.block(x, x, x, need_weights=False)[0]


class Recurrent(Pooled):
    def run(self, x):
        return self.block(x)[0]


def attention(batch_first):
    return Attention(nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first), not batch_first)


def encoder(batch_first, **options):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=batch_first, **options)
    return Pooled(layer, not batch_first)


def recurrent(kind, batch_first=True, **options):
    width = 5 * (2 if options.get("bidirectional") else 1)
    return Recurrent(kind(WIDTH, 5, batch_first=batch_first, **options), not batch_first, width)


class TiedHead(nn.Module):
    """An embedding that is the output layer too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.body = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.tanh(self.body(self.embedding(x))))


class OutsideUse(nn.Module):
    """The same weight through its module and beside it."""

    def __init__(self):
        super().__init__()
        self.embedding, self.body = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.linear(torch.tanh(self.body(self.embedding(x))), self.embedding.weight)


class NeverCalled(nn.Module):
    """A module that only stores its weight."""

    def __init__(self):
        super().__init__()
        self.store, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(torch.tanh(F.linear(x, self.store.weight, self.store.bias)).mean(1))


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))).mean(1))


class TwoPlaces(nn.Module):
    """One module under two names, each of them called."""

    def __init__(self):
        super().__init__()
        layer = nn.Linear(WIDTH, WIDTH)
        self.first, self.rest = layer, nn.ModuleDict({"again": layer, "head": nn.Linear(WIDTH, 3)})

    def forward(self, x):
        return self.rest["head"](torch.tanh(self.rest["again"](torch.tanh(self.first(x)))).mean(1))


class TwoNames(nn.Module):
    """One tensor under two attributes of one module."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.other, self.head = self.scale, nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head((torch.tanh(x * self.scale) + x.sin() * self.other).mean(1))


class Bare(nn.Module):
    """Parameters that belong to no layer: positions, a list, a dictionary."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(STEPS, WIDTH))
        self.scales = nn.ParameterList([torch.ones(WIDTH), torch.ones(())])
        self.shifts = nn.ParameterDict({"a": torch.zeros(WIDTH)})
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        h = torch.tanh((x + self.positions) * self.scales[0]) * self.scales[1]
        return self.head(torch.tanh(h + self.shifts["a"]).mean(1))


class Scaling(nn.Module):
    """A layer of the user's."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x.cumsum(1) * self.weight + self.bias


class CosineLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, F.normalize(self.weight)) + self.bias


class Branching(nn.Module):
    """Data decide what is computed: beyond torch.func."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, 3)

    def forward(self, x):
        h = x * self.scale
        if len(h) == 1 and h.sum() > 0:
            h = h * 2
        elif len(h) > 1:
            h = torch.where(h.sum((1, 2), keepdim=True) > 0, 2 * h, h)
        return self.head(torch.tanh(h).mean(1))


def normalised(parametrise):
    model = Pooled(nn.Linear(WIDTH, WIDTH))
    parametrise(model.block)
    return model


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Bilinear(WIDTH, WIDTH, 3)

    def forward(self, x):
        return self.layer(x[:, 0], x[:, 1])


class Sequence(nn.Module):
    """Data [n, l, d] -> layer -> class logits; ``around`` applies the layer in some layout."""

    def __init__(self, around, layer=None):
        super().__init__()
        self.layer, self.head, self.around = layer or nn.Linear(WIDTH, 4), nn.Linear(4, 3), around
        randomise(self).double()

    def forward(self, x):
        return self.head(torch.tanh(self.around(self.layer, x)).mean(1))


def straight(layer, x):
    return layer(x)


def flattened(layer, x):
    return layer(x.reshape(-1, WIDTH)).reshape(*x.shape[:2], -1)


def time_first(layer, x):
    return layer(x.transpose(0, 1)).transpose(0, 1)


def scrambled(layer, x):
    """As many rows as samples, but no row is a sample."""
    mixed = x.transpose(0, 1).reshape(x.shape)
    return layer(mixed).reshape(x.shape[1], x.shape[0], -1).transpose(0, 1)


def sequences(n, steps=4):
    """Data and labels of n samples."""
    return torch.randn(n, steps, WIDTH, dtype=torch.float64), torch.randint(3, (n,))


def network(*outputs):
    return randomise(nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, prod(outputs)))).double()


def inputs(n=5):
    return torch.randn(n, WIDTH, dtype=torch.float64)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classes, self.value = nn.Linear(WIDTH, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        randomise(self).double()

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.classes(h), self.value(h)


class OwnLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(WIDTH, 4))

    def forward(self, x):
        return x @ self.kernel


class Stored(OwnLinear):
    """Computes with a second reference to its parameter, as RNNs do: torch.func's stand-ins do not get there."""

    def __init__(self):
        super().__init__()
        self.stored = [self.kernel]

    def forward(self, x):
        return x @ self.stored[0]


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(WIDTH, 4, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]
