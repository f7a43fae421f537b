"""Directions and the parts of a model: kinds of parameters, layers that come apart, sequences."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from bitfreeze import BLIP, Rules
from bitfreeze.blip.directions import DRIFT_FACTOR
from bitfreeze.likelihoods import Categorical
from support.held_along_directions import ALL, guard_of, started
from support.protected_nets import assert_same, make_task, train, train_sgd

# kinds of parameters


class Kinds(nn.Module):
    """One parameter of each kind that is held entry by entry, and a layer that is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.tied = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.tied.weight = self.embed.weight
        self.plain, self.twice, self.part = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm, self.scale = nn.LayerNorm(6), nn.Parameter(torch.ones(6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.plain(self.embed(tokens))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x)))) * self.scale
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.tied(self.part(self.norm(x)))


def test_what_is_no_plain_layer_is_held_entry_by_entry_and_the_report_says_how() -> None:
    model = Kinds()
    names = [name for name, _ in model.named_parameters() if name != "part.bias"]
    blip = BLIP(model, watch=names, rules=ALL, tolerance=0.02)
    report = blip.consolidate([torch.randint(7, (16, 5))])
    assert list(guard_of(blip).layers) == ["plain.weight"]
    assert sorted(blip.intervals()) == sorted(name for name in names if not name.startswith("plain"))
    assert report.tensors["plain"].fisher_way == "along directions"
    assert report.tensors["plain"].entries == 42
    assert sorted(report.tensors) == sorted({"plain", *blip.intervals()})
    assert all(report.tensors[name].fisher_way for name in report.tensors)
    assert "along directions" not in [report.tensors[name].fisher_way for name in blip.intervals()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(10 * torch.randn_like(parameter))
    blip.clamp_()
    parameters = dict(model.named_parameters())
    for name, (low, high) in blip.intervals().items():
        assert ((low <= parameters[name]) & (parameters[name] <= high)).all(), name
        assert torch.isfinite(low).any(), name
    assert blip.drift() <= 0.02 * 1.001


@pytest.mark.parametrize("bias", [True, False])
def test_depthwise_layers_are_held_entry_by_entry(bias: bool) -> None:
    """The few weights of an output share no inputs with others. Groups with several outputs are along directions."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 4, 2, groups=4, bias=bias), nn.Conv2d(4, 4, 2, groups=2), nn.Flatten(), nn.Linear(16, 3)
    )
    blip = BLIP(model, rules=ALL, tolerance=0.02)
    report = blip.consolidate([torch.randn(8, 4, 4, 4)])
    names = ["0.weight", "0.bias"][: 1 + bias]
    assert list(blip.intervals()) == names
    ways = {name: tensor.fisher_way for name, tensor in report.tensors.items()}
    expected = {name: f"rule Conv2d.{name.removeprefix('0.')}" for name in names}
    assert ways == {**expected, "1": "along directions", "3": "along directions"}
    state = guard_of(blip).states["0.weight"]
    low, high = blip.intervals()["0.weight"]
    torch.testing.assert_close((high - low) / 2, (blip.prior / state.fisher).sqrt(), rtol=1e-4, atol=1e-6)


def test_entries_are_held_by_the_same_prior() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double()
    blip = BLIP(model, rules=ALL, tolerance=0.3)
    x, _ = make_task(0)
    blip.consolidate([x.double()], labels="exact")
    entries = sum(parameter.numel() for parameter in model.parameters())
    assert math.isclose(blip.prior, 2 * 0.3 / (DRIFT_FACTOR * entries))
    state = guard_of(blip).states["1.weight"]
    low, high = blip.intervals()["1.weight"]
    torch.testing.assert_close((high - low) / 2, (blip.prior / state.fisher).sqrt(), rtol=1e-9, atol=1e-12)


def test_a_layer_that_a_task_does_not_use_keeps_its_coordinates_bit_for_bit() -> None:
    model, blip = started()
    before = blip.state_dict()["directions"]
    train(model, make_task(1), SGD(model.parameters(), lr=1.0), forward=lambda x: model(x, 1))
    report = blip.consolidate([make_task(1)], forward=lambda x: model(x, 1))
    after = blip.state_dict()["directions"]
    assert_same(after["heads.0.weight"], before["heads.0.weight"])
    assert report.tensors["heads.0"].fisher_way == "not used by forward"
    assert not torch.equal(after["backbone.0.weight"]["fisher"], before["backbone.0.weight"]["fisher"])
    assert "heads.1.weight" in after


@pytest.mark.parametrize("fisher", ["sum", "mean"])
def test_what_a_task_does_not_use_keeps_its_fisher_layers_and_tensors_alike(fisher: str) -> None:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)) for _ in range(2)])
    rules = Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=1, fisher=fisher)
    blip = BLIP(model, rules=rules, tolerance=0.02)
    x, _ = make_task(0)
    blip.consolidate([x], lambda x: model[0](x) + model[1](x), labels="exact")
    before = blip.state_dict()
    report = blip.consolidate([x], model[0], labels="exact")
    after = blip.state_dict()
    assert torch.equal(after["directions"]["1.1.weight"]["fisher"], before["directions"]["1.1.weight"]["fisher"])
    for name in ("weight", "bias"):
        assert torch.equal(after["tensors"][f"1.0.{name}"]["fisher"], before["tensors"][f"1.0.{name}"]["fisher"])
        assert before["tensors"][f"1.0.{name}"]["fisher"].any()
        assert not torch.equal(after["tensors"][f"0.0.{name}"]["fisher"], before["tensors"][f"0.0.{name}"]["fisher"])
    ways = {name: tensor.fisher_way for name, tensor in report.tensors.items()}
    assert {ways[name] for name in ("1.0.weight", "1.0.bias", "1.1")} == {"not used by forward"}


def test_a_layer_that_only_later_batches_use_is_measured() -> None:
    model, blip = started()
    before = sum(int(bits.sum()) for name, bits in blip.frozen_bits().items() if name.startswith("heads.0"))
    fisher = guard_of(blip).layers["heads.0.weight"].fisher_of_entries()
    calls = []

    def forward(x: Tensor) -> Tensor:
        calls.append(len(x))
        return model(x, 0 if x[0, 0] > 1 else 1)

    x, _ = make_task(1)
    first, later = x.clone(), x.clone()
    first[:, 0], later[:, 0] = 0.0, 2.0
    blip.consolidate([first, later], forward=forward, labels="exact")
    states = guard_of(blip).states
    now = guard_of(blip).layers.get("heads.0.weight")
    total = (
        [states[f"heads.0.{name}"].fisher for name in ("weight", "bias")] if now is None else now.fisher_of_entries()
    )
    for was, found in zip(fisher, total, strict=True):
        assert (found >= was * (1 - 1e-5) - 1e-9).all()
        assert found.sum() > was.sum() * 1.01
    assert sum(int(bits.sum()) for name, bits in blip.frozen_bits().items() if name.startswith("heads.0")) >= before


def test_a_layer_that_is_called_twice_from_now_on_keeps_what_was_known() -> None:
    """Also of its bias: both are held entry by entry, with the Fisher of earlier tasks spread over them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    blip = BLIP(model, rules=ALL, tolerance=0.02)
    x, _ = make_task(0)
    blip.consolidate([x], labels="exact")
    before = guard_of(blip).layers["0.weight"].fisher_of_entries()
    report = blip.consolidate([x], lambda x: model[2](torch.tanh(model[0](torch.tanh(model[0](x))))), labels="exact")
    assert list(guard_of(blip).layers) == ["2.weight"]
    assert {"0.weight", "0.bias", "2"} == set(report.tensors)
    for name, was in zip(("0.weight", "0.bias"), before, strict=True):
        assert (guard_of(blip).states[name].fisher >= was).all()
    blip.consolidate([x], labels="exact")  # and back along directions
    assert list(guard_of(blip).layers) == ["0.weight", "2.weight"]
    after = guard_of(blip).layers["0.weight"].turning.fisher.sum()
    assert after > sum(was.sum() for was in before)


@pytest.mark.parametrize("first", [True, False], ids=["goes", "comes"])
def test_a_bias_that_goes_or_comes_takes_nothing_from_its_weight(first: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5, bias=first), nn.Tanh(), nn.Linear(5, 3))
    blip = BLIP(model, rules=ALL, tolerance=0.02)
    blip.attach()
    x, _ = make_task(0)
    blip.consolidate([x], labels="exact")
    before = guard_of(blip).layers["0.weight"].fisher_of_entries()[0]
    model[0].bias = None if first else nn.Parameter(torch.zeros(5))
    blip.clamp_()
    train_sgd(model, 1)
    blip.consolidate([x], labels="exact")
    layer = guard_of(blip).layers["0.weight"]
    assert layer.turning.fisher.sum() > before.sum()
    assert (layer.bias is None) == first


# sequences


@pytest.mark.parametrize("masked", [False, True])
def test_tolerance_is_nats_a_predicted_token(masked: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)).double()
    x, counts = torch.randn(12, 7, 4).double(), torch.ones(12, 7, dtype=torch.bool)
    if masked:
        counts[:, 5:] = False
        counts[:6, 3:] = False
    blip = BLIP(model, rules=ALL, tolerance=0.1)
    blip.consolidate([x], lambda x: Categorical(model(x), mask=counts) if masked else model(x), labels="exact")
    entries, positions = sum(p.numel() for p in model.parameters()), int(counts.sum()) / 12
    assert positions == (4 if masked else 7)
    assert math.isclose(blip.prior, 2 * 0.1 * positions / (DRIFT_FACTOR * entries))
    before = model(x).detach().log_softmax(-1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-4 * torch.randn_like(parameter))
    kl = (before.exp() * (before - model(x).log_softmax(-1))).sum(-1)[counts].mean()
    assert 0.3 < guard_of(blip).quadratic_cost() / kl.item() < 3  # off-diagonals are dropped


def test_masked_tokens_do_not_count() -> None:
    states = []
    for filling in (0.0, 50.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)).double()
        x, counts = torch.randn(8, 5, 4).double(), torch.ones(8, 5, dtype=torch.bool)
        counts[:, 3:] = False
        x[:, 3:] = filling
        blip = BLIP(model, rules=ALL, tolerance=0.1)
        blip.consolidate([x], lambda x, m=model, c=counts: Categorical(m(x), mask=c), labels="exact")
        states.append(blip.state_dict())
    assert states[0]["prior"] == states[1]["prior"]
    for name, saved in states[0]["directions"].items():
        torch.testing.assert_close(states[1]["directions"][name]["fisher"], saved["fisher"], rtol=1e-6, atol=1e-12)


def test_the_report_says_why_a_layer_is_not_held_along_directions() -> None:
    torch.manual_seed(0)
    twice, once = nn.Linear(6, 6), nn.Linear(6, 3)
    model = nn.ModuleList([twice, once])
    report = BLIP(model).consolidate([torch.randn(16, 6)], lambda x: once(twice(twice(x).tanh())))
    assert report.tensors["1"].fisher_way == "along directions"
    for name in ("0.weight", "0.bias"):
        assert report.tensors[name].fisher_way.endswith(", not along directions: called 2 times")
