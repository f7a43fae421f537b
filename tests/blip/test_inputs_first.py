"""A layer with a weight [inputs, outputs], as GPT-2 has: it is held as a Linear of the same numbers is."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bitfreeze import BLIP, Rules, protect, save_protection
from bitfreeze.blip.adapters import HeldAdapters
from bitfreeze.blip.low_rank import Term
from bitfreeze.blip.protection import table_of
from bitfreeze.fisher import diagonal_fisher, explain
from bitfreeze.fisher.factors import joined, split_joined, write_joined_
from bitfreeze.model.layers import CONV1D
from support.held_along_directions import guard_of


class Conv1D(nn.Module):
    """z = x W + b, as in Transformers."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], -1)


Conv1D.__module__, Conv1D.__qualname__ = CONV1D.rsplit(".", 1)


class Tokens(nn.Module):
    """Two layers over tokens, and a mean over them."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))).mean(1)


def pair() -> tuple[Tokens, Tokens]:
    """The same network with a Conv1D and with a Linear."""
    torch.manual_seed(0)
    one = Tokens(Conv1D(8, 5)).double()
    other = copy.deepcopy(one)
    linear = nn.Linear(5, 8).double()
    linear.load_state_dict({"weight": one.first.weight.detach().T, "bias": one.first.bias.detach()})
    other.first = linear
    return one, other


def data(seed: int = 0) -> list[Tensor]:
    return torch.randn(60, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).split(20)


def turned_back(name: str, value: Tensor) -> Tensor:
    return value.T if name == "first.weight" else value


def test_its_joined_matrix_is_that_of_the_linear() -> None:
    one, other = pair()
    matrix = joined(one.first)
    assert torch.equal(matrix, joined(other.first))
    write_joined_(one.first, matrix + 1)
    assert torch.equal(joined(one.first), matrix + 1)
    assert {name: value.shape for name, value in split_joined(one.first, matrix).items()} == {
        "weight": torch.Size([5, 8]),
        "bias": torch.Size([8]),
    }


@pytest.mark.parametrize("tokens", [True, False])
def test_its_fisher_comes_from_a_rule_and_is_that_of_the_linear(tokens: bool) -> None:
    one, other = pair()
    batches = data()
    if not tokens:
        one, other = (nn.Sequential(net.first, net.second) for net in (one, other))
        batches = [batch[:, 0] for batch in batches]
    name = "first.weight" if tokens else "0.weight"
    assert explain(one, batches)[name] == "rule Conv1D.weight"
    found, expected = (diagonal_fisher(net, batches, labels="exact") for net in (one, other))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value.T if key == name else value)


def trained(net: nn.Module, rules: Any, tasks: int = 3, lr: float = 0.3) -> BLIP:
    blip = BLIP(net, rules=rules, tolerance=0.01)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for task in range(tasks):
        if task:
            for x in data(task):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), torch.arange(len(x)) % 3).backward()
                optimizer.step()
                blip.clamp_()
        blip.consolidate(data(task), labels="exact")
    return blip


@pytest.mark.parametrize("strongest", [None, 3])
def test_training_under_protection_is_that_of_the_linear(strongest: int | None) -> None:
    one, other = pair()
    rules = Rules.directions(strongest=strongest)
    blips = [trained(net, rules) for net in (one, other)]
    [held, _] = guard_of(blips[0]).layers.values()
    assert held.turning.inputs_first
    for (name, found), expected in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(turned_back(name, found), expected, rtol=1e-3, atol=1e-5)
    assert blips[0].drift() == pytest.approx(blips[1].drift(), rel=1e-2, abs=1e-8)
    for name, bits in blips[0].frozen_bits().items():
        assert bits.shape == one.get_parameter(name).shape
    free = copy.deepcopy(pair()[0])
    trained(free, Rules.directions(strongest=strongest), tasks=1)
    assert blips[0].nbytes() == blips[1].nbytes()


@pytest.mark.parametrize("strongest", [None, 3])
def test_a_saved_state_is_taken_up(strongest: int | None) -> None:
    net, _ = pair()
    blip = trained(net, Rules.directions(strongest=strongest))
    state = blip.state_dict()
    twin = pair()[0]
    twin.load_state_dict(net.state_dict())
    again = BLIP(twin, rules=Rules.directions(strongest=strongest), tolerance=0.01)
    again.load_state_dict(state)
    with torch.no_grad():
        for model, held in ((net, blip), (twin, again)):
            model.first.weight.add_(torch.linspace(-1, 1, 40).double().reshape(5, 8))
            held.clamp_()
    assert torch.equal(net.first.weight, twin.first.weight)


@pytest.mark.parametrize("strongest", [None, 3])
def test_a_layer_that_loses_its_bias_is_held_entry_by_entry(strongest: int | None) -> None:
    nets = pair()
    found = []
    for net in nets:
        blip = trained(net, Rules.directions(strongest=strongest), tasks=2)
        net.first.bias = None
        blip.clamp_()
        [state] = [s for n, s in guard_of(blip).held_by_entry().items() if n == "first.weight"]
        assert state.fisher is not None
        assert state.fisher.shape == net.first.weight.shape
        found.append(state.fisher)
    torch.testing.assert_close(found[0].T, found[1], rtol=1e-2, atol=1e-8)


def test_a_protection_file_belongs_to_its_weights(tmp_path: Path) -> None:
    net, other = pair()
    net, other = net.float(), other.float()
    batches = [batch.float() for batch in data()]
    for model, name in ((net, "one"), (other, "other")):
        blip = protect(model, batches, rules=Rules.directions(strongest=3), labels="exact")
        save_protection(blip, tmp_path / name)
    found = []
    for model, name in ((net, "one"), (other, "other")):
        blip = protect(model, tmp_path / name)
        with torch.no_grad():
            change = torch.linspace(-1, 1, 40).reshape(8, 5)
            model.first.weight.add_(change.T if name == "one" else change)
        blip.clamp_()
        found.append(model.first.weight.detach())
    torch.testing.assert_close(found[0].T, found[1], rtol=1e-3, atol=1e-4)


def test_adapters_beside_it_are_held_as_beside_the_linear() -> None:
    ends = []
    for net in pair():
        net = net.float()
        blip = protect(net, [batch.float() for batch in data()], rules=Rules.directions(strongest=3), labels="exact")
        torch.manual_seed(1)
        term = Term(torch.randn(2, 5), torch.randn(8, 2), 1.0)
        held = HeldAdapters(table_of(blip.state_dict()), {"first.weight": lambda term=term: [term]}, tolerance=0.01)
        held.clamp_()
        ends.append(term.up @ term.down)
        blip.detach()
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-2, atol=1e-3)


def test_levels_leave_it_out() -> None:
    """Levels hold rows of a weight, and this weight has none for its outputs."""
    net, _ = pair()
    blip = BLIP(net, rules=replace(Rules.strict(), levels=True), budget=0.1)
    blip.consolidate(data(), labels="exact")
    assert set(blip.state_dict()["levels"]["means"]) == {"second.weight"}
