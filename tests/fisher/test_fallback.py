"""Parameters that no rule covers: as exact, with a reason in the report, and the model is left as it was."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from bitfreeze.fisher import estimate
from support.networks import (
    STEPS,
    TOKENS,
    WIDTH,
    Bare,
    Bilinear,
    Branching,
    CalledTwice,
    CosineLinear,
    NeverCalled,
    OutsideUse,
    Pooled,
    Scaling,
    TiedHead,
    TwoNames,
    TwoPlaces,
    attention,
    encoder,
    normalised,
    recurrent,
)
from support.truth import assert_matches, empirical_fisher, randomise, unchanged

SAMPLES = 6


def vectors():
    return torch.randn(SAMPLES, STEPS, WIDTH)


def tokens():
    return torch.randint(TOKENS, (SAMPLES, STEPS))


FUNC, ONE = "torch.func", "one sample at a time"
CASES = {  # model, data, parameter, its way (None: not to be relied on) and the reason in the report
    "attention": (lambda: attention(True), vectors, "block.in_proj_weight", FUNC, "no rule for in_proj_weight"),
    "attention-out": (lambda: attention(True), vectors, "block.out_proj.weight", FUNC, "used outside its module"),
    "attention-time-first": (lambda: attention(False), vectors, "block.in_proj_bias", FUNC, "no rule"),
    "encoder": (lambda: encoder(True), vectors, "block.self_attn.out_proj.bias", FUNC, "used outside its module"),
    "encoder-time-first": (lambda: encoder(False), vectors, "block.linear1.weight", FUNC, "is not the sample"),
    "encoder-norm-first": (lambda: encoder(True, norm_first=True), vectors, "block.self_attn.in_proj_weight", FUNC, ""),
    "rnn": (lambda: recurrent(nn.RNN), vectors, "block.weight_hh_l0", ONE, "no rule for weight_hh_l0 of RNN"),
    "lstm": (lambda: recurrent(nn.LSTM), vectors, "block.weight_ih_l0", ONE, "no rule for weight_ih_l0 of LSTM"),
    "gru": (lambda: recurrent(nn.GRU), vectors, "block.bias_hh_l0", ONE, "no rule for bias_hh_l0 of GRU"),
    "gru-time-first": (lambda: recurrent(nn.GRU, batch_first=False), vectors, "block.bias_hh_l0", ONE, "no rule"),
    "lstm-deep": (
        lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True),
        vectors,
        "block.weight_hh_l1_reverse",
        ONE,
        "no rule",
    ),
    "tied": (TiedHead, tokens, "embedding.weight", FUNC, "held in 2 places"),
    "outside-use": (OutsideUse, tokens, "embedding.weight", FUNC, "disagrees with autograd"),
    "never-called": (NeverCalled, vectors, "store.weight", FUNC, "used outside its module"),
    "called-twice": (CalledTwice, vectors, "layer.weight", FUNC, "called 2 times"),
    "two-places": (TwoPlaces, vectors, "first.bias", FUNC, "called 2 times"),
    "two-names": (TwoNames, vectors, "scale", None, "held in 2 places"),
    "bare": (Bare, vectors, "positions", FUNC, "no rule for positions of Bare"),
    "user-layer": (lambda: Pooled(Scaling()), vectors, "block.weight", FUNC, "no rule for weight of Scaling"),
    "subclass": (lambda: Pooled(CosineLinear(WIDTH, WIDTH)), vectors, "block.bias", FUNC, "overrides forward"),
    "branching": (Branching, vectors, "scale", ONE, "torch.func: "),
    "weight-norm": (
        lambda: normalised(nn.utils.parametrizations.weight_norm),
        vectors,
        "block.parametrizations.weight.original0",
        FUNC,
        "no rule",
    ),
    "spectral-norm": (
        lambda: normalised(nn.utils.parametrizations.spectral_norm),
        vectors,
        "block.parametrizations.weight.original",
        FUNC,
        "no rule",
    ),
    "bilinear": (Bilinear, vectors, "layer.weight", None, "no rule for weight of Bilinear"),
    "instance-norm": (
        lambda: Pooled(nn.InstanceNorm1d(STEPS, affine=True)),
        vectors,
        "block.weight",
        FUNC,
        "no rule for weight of InstanceNorm1d",
    ),
    "prelu": (lambda: Pooled(nn.PReLU(STEPS)), vectors, "block.weight", FUNC, "no rule for weight of PReLU"),
}


def build(name):
    make, data, *_ = CASES[name]
    x = data()
    model = randomise(make()).double()
    labels = torch.randint(3, x.shape if x.ndim == 2 else x.shape[:1])
    return model, x if x.ndim == 2 else x.double(), labels


@pytest.mark.parametrize("name", CASES)
def test_exact_and_reported(name):
    model, x, y = build(name)
    _, _, parameter, way, reason = CASES[name]
    with unchanged(model):
        result = estimate(model, [(x[:4], y[:4]), (x[4:], y[4:])], labels="true")
    assert_matches(result.values, empirical_fisher(model, x, y))
    assert way is None or result.ways[parameter].startswith(f"{way} (")
    assert reason in result.ways[parameter]


@pytest.mark.parametrize("name", CASES)
def test_float32_too(name):
    model, x, y = build(name)
    model, x = model.float(), x.float() if x.is_floating_point() else x
    assert_matches(estimate(model, [(x, y)], labels="true").values, empirical_fisher(model, x, y))


@pytest.mark.parametrize("name", CASES)
def test_model_still_learns(name):
    """Parameters are the same objects, and what the modules compute with: RNNs keep a second list of theirs."""
    model, x, y = build(name)
    before = list(model.parameters())
    expected = model.eval()(x).detach()
    estimate(model, [(x, y)])
    assert all(old is new for old, new in zip(before, model.parameters(), strict=True))
    torch.testing.assert_close(model(x).detach(), expected, rtol=0, atol=0)
    nn.functional.cross_entropy(model.train()(x).flatten(0, -2), y.flatten()).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in before)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            assert all(any(w is p for p in before) for w in module._flat_weights)


@pytest.mark.parametrize("labels", ["sample", "exact"])
@pytest.mark.parametrize("name", ["attention", "gru", "tied", "called-twice", "branching"])
def test_same_for_all_batch_sizes(name, labels):
    model, x, _ = build(name)
    whole, *others = (
        estimate(model, x.split(size), labels=labels, generator=torch.Generator().manual_seed(1)).values
        for size in (SAMPLES, 1, 4)
    )
    for other in others:
        assert_matches(other, whole, 1e-12)


def test_layer_of_its_own_module_keeps_its_rule_beside_a_fallback():
    model, x, y = build("lstm")
    rules = estimate(model, [(x, y)], labels="true").ways
    assert rules["head.weight"] == "rule Linear.weight"


def test_registered_in_two_places_but_called_once_gets_its_rule():
    layer = nn.Linear(WIDTH, 3)
    model = randomise(nn.ModuleDict({"a": layer, "b": nn.ModuleDict({"again": layer})})).double()
    x, y = torch.randn(SAMPLES, WIDTH, dtype=torch.float64), torch.randint(3, (SAMPLES,))
    result = estimate(model, [(x, y)], lambda x: model["a"](x), labels="true")
    assert_matches(result.values, empirical_fisher(model, x, y, lambda m, x, y: m["a"](x).log_softmax(-1)[0, y].sum()))
    assert result.ways == {"a.weight": "rule Linear.weight", "a.bias": "rule Linear.bias"}


def test_weight_norm_leaves_the_bias_to_its_rule():
    model, x, y = build("weight-norm")
    assert estimate(model, [(x, y)], labels="true").ways["block.bias"] == "rule Linear.bias"


def test_behind_frozen_attention():
    """Without gradients torch would take a fused path through attention, which torch.func cannot follow."""
    model = nn.Sequential(encoder(True).block, Pooled(Scaling()))
    randomise(model).double()[0].requires_grad_(False)
    x, y = vectors().double(), torch.randint(3, (SAMPLES,))
    result = estimate(model, [(x, y)], labels="true", watch=model[1])
    expected = empirical_fisher(model, x, y)
    assert_matches(result.values, {name: value for name, value in expected.items() if name.startswith("1.")})
    assert result.ways["1.block.weight"].startswith("torch.func (")


def test_pruned_layer():
    """Pruning computes the weight in a hook and keeps it on the module: nothing of torch.func may stay there."""
    x, y = torch.randn(SAMPLES, WIDTH, dtype=torch.float64), torch.randint(3, (SAMPLES,))
    model = randomise(nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    prune.random_unstructured(model[0], "weight", 0.5)
    with torch.no_grad():
        model(x)
    expected = empirical_fisher(model, x, y)
    assert_matches(estimate(model, [(x, y)], labels="true").values, expected)
    assert not torch._C._functorch.is_functorch_wrapped_tensor(model[0].weight)
