"""The Llama of stories15M against a second implementation, token by token."""

import pytest
import torch

from bitfreeze.lab.nets import build_network
from bitfreeze.lab.nets.llama import rotated
from support.pretrained import take_as_they_are, write_language
from support.tiny_llama import SHAPE, tiny_weights

pytestmark = pytest.mark.filterwarnings("ignore:stories15m")
POSITIONS = 7


@pytest.fixture
def net(tmp_path, monkeypatch):
    take_as_they_are(tmp_path, monkeypatch)
    write_language(tmp_path)
    return lambda **options: build_network({"kind": "stories15m", **options}, (POSITIONS,), [SHAPE.vocabulary] * 2)


def normed(x, scale):
    return scale * x / (x.pow(2).mean() + 1e-5).sqrt()


def turned(x, position):
    """Each pair of neighbours as a complex number, multiplied by exp(i angle)."""
    pairs = torch.view_as_complex(x.view(-1, 2).contiguous())
    angles = position * 10000.0 ** (-torch.arange(len(pairs)) * 2 / len(x))
    return torch.view_as_real(pairs * torch.polar(torch.ones(len(pairs)), angles)).flatten()


def logits_one_by_one(tokens):
    """Scores of each position, computed for one token after another with a cache of keys and values."""
    w, size = tiny_weights(), SHAPE.width // SHAPE.heads
    keys, values = ([[] for _ in range(SHAPE.layers)] for _ in range(2))
    found = []
    for position, token in enumerate(tokens):
        x = w["embedding"][token]
        for k in range(SHAPE.layers):
            a = normed(x, w["before_attention"][k])
            query, key, value = (w[kind][k] @ a for kind in ("query", "key", "value"))
            keys[k].append([turned(part, position) for part in key.split(size)])
            values[k].append(value.split(size))
            mixed = []
            for head, part in enumerate(query.split(size)):
                scores = torch.stack([turned(part, position) @ past[head] for past in keys[k]]) / size**0.5
                mixed.append(sum(p * past[head] for p, past in zip(scores.softmax(0), values[k], strict=True)))
            x = x + w["out"][k] @ torch.cat(mixed)
            b = normed(x, w["before_gate"][k])
            gate = w["gate"][k] @ b
            x = x + w["down"][k] @ (gate * torch.sigmoid(gate) * (w["up"][k] @ b))
        found.append(w["embedding"] @ normed(x, w["norm"]))
    return torch.stack(found)


@pytest.mark.parametrize("train", ["linear", "all"])
def test_scores_are_those_of_one_token_after_another(net, train):
    tokens = torch.randint(SHAPE.vocabulary, (2, POSITIONS), generator=torch.Generator().manual_seed(0))
    scores = net(train=train)(tokens, 1)
    assert scores.shape == (2, POSITIONS, SHAPE.vocabulary)
    torch.testing.assert_close(scores, torch.stack([logits_one_by_one(row) for row in tokens]), rtol=1e-4, atol=1e-4)


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    a, b = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(2, 1, 1, 6, 8)
    a, b = rotated(a)[0, 0], rotated(b)[0, 0]
    products = a @ b.T
    torch.testing.assert_close(products.diagonal(2), products[0, 2].expand(4))
    torch.testing.assert_close(a.norm(dim=1), a[0].norm().expand(6))


def test_only_weights_of_linear_layers_are_parameters_by_default(net):
    names = [name for name, _ in net().named_parameters()]
    assert len(names) == 7 * SHAPE.layers
    assert not any("norm" in name or "before" in name or "embedding" in name for name in names)
    assert len(list(net(train="all").parameters())) == len(names) + 2 * SHAPE.layers + 2


def test_texts_of_another_tokenizer_are_refused(net):
    with pytest.raises(ValueError, match=r"needs texts in its own .* tokens, got 50; .*bitfreeze data get stories15m"):
        build_network({"kind": "stories15m"}, (POSITIONS,), [50])
    with pytest.raises(ValueError, match=r"at most 32 tokens, got shape \(33,\); lower stream.length"):
        build_network({"kind": "stories15m"}, (33,), [SHAPE.vocabulary])
