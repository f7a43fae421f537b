"""A head that grows: its first rows are held exactly as in a twin that does not grow, and new rows are free."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from bitfreeze import BLIP, Rules
from bitfreeze.blip.rules import WeightRules
from bitfreeze.blip.tensor_state import TensorState
from support.protected_nets import GUARDS, RULES, assert_inside, assert_same, make_task, snapshot, train, train_sgd

pytestmark = pytest.mark.filterwarnings(
    "ignore:no weight reached the edge", "ignore:no watched weight has changed", "ignore:the budget of"
)
OLD, NEW = 3, 2
BY_WEIGHT: dict[str, WeightRules] = {**RULES, "levels": replace(Rules.following(), levels=True)}


class Growing(nn.Module):
    def __init__(self, outputs: int = OLD) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.head = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def started(**settings: Any) -> tuple[Growing, BLIP]:
    """A network that has learned one task, attached to a BLIP that watches all of it."""
    torch.manual_seed(0)
    model = Growing()
    blip = BLIP(model, **(settings or GUARDS["strict"]))
    blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)])
    return model, blip


def enlarged(layer: Any, more: int = NEW) -> Any:
    """A copy of a layer with more rows. The first ones are its own."""
    larger = copy.deepcopy(layer)
    grow_in_place(larger, more)
    return larger


def grow_in_place(layer: Any, more: int = NEW) -> None:
    for name, parameter in list(layer.named_parameters()):
        rows = torch.randn(more, *parameter.shape[1:], dtype=parameter.dtype) / 10
        setattr(layer, name, nn.Parameter(torch.cat([parameter.detach(), rows])))


def by_module(model: Growing) -> None:
    model.head = enlarged(model.head)


def by_parameter(model: Growing) -> None:
    grow_in_place(model.head)


def by_data(model: Growing) -> None:
    larger = enlarged(model.head)
    for mine, theirs in zip(model.head.parameters(), larger.parameters(), strict=True):
        mine.data = theirs.data


WAYS: dict[str, Callable[[Growing], None]] = {"module": by_module, "parameter": by_parameter, "data": by_data}


def step_with(model: nn.Module, gradients: dict[str, Tensor], rate: float) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name][: len(parameter)].clone()
    SGD(model.parameters(), lr=rate).step()


def random_gradients(model: nn.Module, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=draw, dtype=p.dtype) for name, p in model.named_parameters()}


@pytest.mark.parametrize("rules", BY_WEIGHT)
@pytest.mark.parametrize("way", WAYS)
def test_first_rows_are_clamped_to_the_bytes_of_a_twin_and_new_rows_move_freely(rules: str, way: str) -> None:
    model, blip = started(rules=BY_WEIGHT[rules], budget=0.3)
    (model, blip), (twin, held) = copy.deepcopy((model, blip)), copy.deepcopy((model, blip))
    for each in (blip, held):
        each.clamp_()
    WAYS[way](model)
    new = {name: getattr(model.head, name).detach()[OLD:].clone() for name in ("weight", "bias")}
    for seed in range(4):
        gradients = random_gradients(model, seed)
        for net in (model, twin):
            step_with(net, gradients, rate=0.05)
        for name, expected in twin.named_parameters():
            assert torch.equal(dict(model.named_parameters())[name][: len(expected)], expected), (name, seed)
        if rules != "straight_through":  # where parameters hold rounded values
            for name, rows in new.items():
                rows.add_(gradients[f"head.{name}"][OLD:], alpha=-0.05)  # as SGD computes it
                assert torch.equal(getattr(model.head, name)[OLD:], rows), (name, seed)
    free = {name: ((low, high), bits) for (name, (low, high)), bits in
            zip(blip.intervals().items(), blip.frozen_bits().values(), strict=True)}  # fmt: skip
    for name in new:
        (low, high), bits = free[f"head.{name}"]
        bound = blip.state_dict()["tensors"][f"head.{name}"]["bound"]
        assert not bits[OLD:].any()
        assert bits[:OLD].any()
        assert (high[OLD:] >= bound * (1 - 2.0**-blip.depth)).all()
        assert (low[OLD:] == -high[OLD:]).all()


@pytest.mark.parametrize("rules", RULES)
def test_each_row_counts_its_own_tasks(rules: str) -> None:
    """Rows of three ages end tasks exactly as three tensors would that began with them."""
    model, blip = started(rules=RULES[rules], budget=0.3)
    draw, prior = torch.Generator().manual_seed(1), blip.prior
    assert prior is not None
    blip.clamp_()
    whole = blip._tensors.states["head.weight"]
    assert isinstance(whole, TensorState)
    first = whole.state_dict(sharded=False)
    apart: list[TensorState] = []

    def rows_alone(rows: Tensor) -> TensorState:
        alone = nn.Linear(8, len(rows), bias=False)
        alone.weight = nn.Parameter(rows.clone())
        state = BLIP(alone, rules=RULES[rules], budget=0.3)._tensors.current()["weight"]
        assert isinstance(state, TensorState)
        return replace(state, bound=whole.bound, prior_scale=whole.prior_scale)

    apart.append(rows_alone(model.head.weight.detach()).loaded(first))
    for _ in range(3):
        by_parameter(model)
        blip.attach()
        whole = blip._tensors.states["head.weight"]
        apart.append(rows_alone(whole.theta()[-NEW:]))
        for _ in range(2):
            fisher = torch.rand(whole.local.shape, generator=draw).pow(8) * 1e3 * prior * whole.prior_scale
            parts = fisher.split([len(state.local) for state in apart])
            whole = whole.after_task(fisher, prior)
            apart = [state.after_task(part, prior) for state, part in zip(apart, parts, strict=True)]
            for name in ("bits", "centre", "fisher"):
                expected = torch.cat([getattr(state, name) for state in apart])
                assert torch.equal(getattr(whole, name), expected), name
        blip._tensors.states["head.weight"] = whole
        bias = blip._tensors.states["head.bias"]
        blip._tensors.states["head.bias"] = replace(bias, tasks=whole.tasks)
        blip.clamp_()
        for state in apart:
            state.hold_()
    assert whole.bits is not None
    assert whole.bits[-NEW:].any()


def grows_and_learns(model: Growing, blip: BLIP, task: int, classes: int) -> None:
    by_module(model)
    train(model, make_task(task, classes=classes), SGD(model.parameters(), lr=1.0))
    blip.consolidate([make_task(task, classes=classes)])


def test_what_is_told_after_growth_is_of_the_larger_head(guard: str) -> None:
    model, blip = started(**GUARDS[guard])
    before, capacity, drift = blip.frozen_bits(), blip.capacity(), blip.drift()
    by_module(model)
    bits = blip.frozen_bits()
    assert torch.equal(bits["head.weight"][:OLD], before["head.weight"])
    assert not bits["head.weight"][OLD:].any()
    frozen = sum(int(b.sum()) for b in bits.values())
    assert frozen == sum(int(b.sum()) for b in before.values())
    assert blip.capacity() == frozen / (blip.depth * sum(p.numel() for p in model.parameters())) < capacity
    assert blip.drift() == drift
    train(model, make_task(1, classes=5), SGD(model.parameters(), lr=1.0))
    blip.clamp_()
    assert_inside(blip)
    report = blip.consolidate([make_task(1, classes=5)])
    assert sum(each.entries for each in report.tensors.values()) == sum(p.numel() for p in model.parameters())
    assert sum(each.frozen for each in report.tensors.values()) == pytest.approx(
        report.used * blip.depth * sum(p.numel() for p in model.parameters())
    )
    assert blip.frozen_bits()["head.weight"][OLD:].any()
    saved = blip.state_dict()
    tensors = [t for each in saved["tensors"].values() for t in each.values() if isinstance(t, Tensor)]
    turned = [t for each in saved.get("directions", {}).values() for t in each.values() if isinstance(t, Tensor)]
    assert blip.nbytes() == sum(t.nbytes for t in (*tensors, *turned))


@pytest.mark.parametrize("copied", ["before", "after"])
def test_a_copy_goes_on_as_the_original(copied: str, guard: str) -> None:
    model, blip = started(**GUARDS[guard])
    if copied == "before":
        other, its = copy.deepcopy((model, blip))
        torch.manual_seed(5)
        grows_and_learns(model, blip, 1, 5)
        torch.manual_seed(5)
        grows_and_learns(other, its, 1, 5)
    else:
        by_module(model)
        blip.clamp_()
        other, its = copy.deepcopy((model, blip))
        for net, held in ((model, blip), (other, its)):
            train(net, make_task(1, classes=5), SGD(net.parameters(), lr=1.0))
            held.consolidate([make_task(1, classes=5)], generator=torch.Generator().manual_seed(1))
    if copied == "after":
        assert_same(snapshot(other, its), snapshot(model, blip))
    assert its.frozen_bits()["head.weight"].shape == (5, 8)


@pytest.mark.parametrize("rules", [*RULES, "levels", "directions"])
def test_a_state_that_was_saved_after_growth_continues_to_the_same_bytes(rules: str) -> None:
    settings = GUARDS["directions"] if rules == "directions" else {"rules": BY_WEIGHT[rules], "budget": 0.3}
    model, blip = started(**settings)
    grows_and_learns(model, blip, 1, 5)
    by_parameter(model)  # once more, and not yet trained
    blip.clamp_()
    other = Growing(OLD + 2 * NEW)
    other.load_state_dict(model.state_dict())
    fresh = BLIP(other, **settings)
    fresh.load_state_dict(blip.state_dict())
    fresh.attach()
    assert_same(fresh.state_dict(), blip.state_dict())
    for net, held in ((model, blip), (other, fresh)):
        train(net, make_task(2, classes=7), SGD(net.parameters(), lr=1.0))
        held.consolidate([make_task(2, classes=7)], generator=torch.Generator().manual_seed(1))
    assert_same(snapshot(other, fresh), snapshot(model, blip))


def test_a_state_of_fewer_rows_is_taken_as_growth(guard: str) -> None:
    model, blip = started(**GUARDS[guard])
    state = blip.state_dict()
    by_module(model)
    blip.clamp_()
    other = Growing(OLD + NEW)
    fresh = BLIP(other, **GUARDS[guard])
    before = fresh.state_dict()
    with pytest.raises(ValueError, match=r"'head\.\w+' has grown from 3 to 5 rows, .* load weights before a state"):
        fresh.load_state_dict(state)
    assert_same(fresh.state_dict(), before)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(state)
    assert_same(fresh.state_dict(), blip.state_dict())


def test_a_state_of_more_rows_is_refused(guard: str) -> None:
    model, blip = started(**GUARDS[guard])
    by_module(model)
    blip.clamp_()
    with pytest.raises(ValueError, match=r"'head.weight' of shape \[5, 8\], which has the shape \[3, 8\] here"):
        BLIP(Growing(), **GUARDS[guard]).load_state_dict(blip.state_dict())


def test_an_optimizer_of_the_larger_head_alone_is_clamped_from_its_first_step(guard: str) -> None:
    model, blip = started(**GUARDS[guard])
    by_module(model)
    train(model, make_task(1, classes=5), SGD(model.head.parameters(), lr=5.0), steps=1)
    assert_inside(blip)
    assert next(iter(blip._attachments)).steps == 1


# what is no growth


def unrelated(model: Growing) -> None:
    model.head = nn.Linear(8, 5)


def unrelated_in_place(model: Growing) -> None:
    model.head.weight, model.head.bias = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(5))


def rows_in_front(model: Growing) -> None:
    model.head = enlarged(model.head)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.copy_(parameter.roll(NEW, 0))


def fewer_rows(model: Growing) -> None:
    model.head = nn.Linear(8, 2)


def more_inputs(model: Growing) -> None:
    model.head = nn.Linear(9, 5)


def turned_round(model: Growing) -> None:
    model.head.weight = nn.Parameter(model.head.weight.detach().mT.clone())


def not_finite(model: Growing) -> None:
    model.head = enlarged(model.head)
    with torch.no_grad():
        model.head.weight[-1, -1] = torch.nan


NO_GROWTH: dict[Callable[[Growing], None], str] = {
    unrelated: "'head.weight' has grown from 3 to 5 rows, so its first 3 must be those that the last task left, got",
    unrelated_in_place: "'head.weight' has grown from 3 to 5 rows",
    rows_in_front: "'head.weight' has grown from 3 to 5 rows",
    fewer_rows: r"'head.weight' had the shape \[3, 8\] when it was consolidated and has \[2, 8\] now: give",
    more_inputs: r"'head.weight' had the shape \[3, 8\] when it was consolidated and has \[5, 9\] now",
    turned_round: r"'head.weight' had the shape \[3, 8\] when it was consolidated and has \[8, 3\] now",
    not_finite: "'head.weight' has NaN or infinite entries",
}
CALLS: dict[str, Callable[[Growing, BLIP], Any]] = {
    "attach": lambda model, blip: blip.attach(),
    "clamp_": lambda model, blip: blip.clamp_(),
    "consolidate": lambda model, blip: blip.consolidate([make_task(1)]),
    "step": lambda model, blip: step_with(model, random_gradients(model, 0), 0.0),
    "frozen_bits": lambda model, blip: blip.frozen_bits(),
    "capacity": lambda model, blip: blip.capacity(),
}


@pytest.mark.parametrize("change", NO_GROWTH, ids=lambda change: change.__name__)
@pytest.mark.parametrize("call", CALLS)
def test_other_tensors_are_refused_and_nothing_changes(change, call: str, guard: str) -> None:
    model, blip = started(**GUARDS[guard])
    head, tensors = model.head, dict(model.head.named_parameters())
    change(model)
    before = snapshot(model, blip)
    with pytest.raises(ValueError, match=NO_GROWTH[change]):
        CALLS[call](model, blip)
    assert_same(snapshot(model, blip), before)
    model.head = head  # as it was, it is watched as it was
    for name, tensor in tensors.items():
        setattr(head, name, tensor)
    train_sgd(model, 1)
    blip.consolidate([make_task(1)])


def test_new_rows_beyond_the_bound_are_refused() -> None:
    model, blip = started()
    by_module(model)
    with torch.no_grad():
        model.head.weight[-1, 0] = 50.0
    with pytest.raises(ValueError, match=r"new rows of 'head.weight' must lie within \d+ of 0, .* got 50; begin with"):
        blip.clamp_()


def test_rows_that_come_in_the_middle_of_a_task(guard: str) -> None:
    model, blip = started(**GUARDS[guard])
    train_sgd(model, 1, steps=1)
    by_parameter(model)
    with pytest.raises(ValueError, match=r"must keep its rows between two steps .* got 5 for 3; .* blip\.clamp_"):
        step_with(model, random_gradients(model, 0), 0.0)
    blip.clamp_()
    train(model, make_task(1, classes=5), SGD(model.parameters(), lr=1.0))
    blip.consolidate([make_task(1, classes=5)])
    assert blip.frozen_bits()["head.weight"].shape == (5, 8)


def test_a_layer_whose_bias_goes_as_it_grows_is_refused_along_directions() -> None:
    model, blip = started(**GUARDS["directions"])
    larger = enlarged(model.head)
    larger.bias = None
    model.head = larger
    with pytest.raises(ValueError, match=r"'head.weight' had the shape \[3, 8\]"):
        blip.clamp_()


# other layers


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "embedding": (lambda: nn.Embedding(4, 3), lambda layer, x: layer(x[:, 0].abs().long() % 4)),
    "convolution": (lambda: nn.Conv1d(1, 4, 2), lambda layer, x: layer(x.unsqueeze(1)).flatten(1)[:, :3]),
}


class Alone(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        make, self.call = LAYERS[kind]
        self.layer = make()

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_of_other_layers_may_be_added_too(kind: str, guard: str) -> None:
    torch.manual_seed(0)
    model = Alone(kind)
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)])
    twin, _held = copy.deepcopy((model, blip))
    model.layer = enlarged(model.layer)
    new = model.layer.weight.detach()[4:].clone()
    for seed in range(3):
        gradients = random_gradients(model, seed)
        for net in (model, twin):
            step_with(net, gradients, rate=0.01)
        new.add_(gradients["layer.weight"][4:], alpha=-0.01)
    tolerance = 0 if guard == "strict" else 1e-5
    torch.testing.assert_close(model.layer.weight[:4], twin.layer.weight, rtol=0, atol=tolerance)
    torch.testing.assert_close(model.layer.weight[4:], new, rtol=0, atol=tolerance)
    blip.consolidate([make_task(1)])
    assert blip.frozen_bits()["layer.weight"].shape[0] == 6


@pytest.mark.parametrize("layer", [nn.ConvTranspose1d(3, 2, 1), nn.Conv1d(4, 2, 1, groups=2), nn.LayerNorm(3)])
def test_rows_of_layers_that_share_them_may_not(layer: nn.Module) -> None:
    model = nn.Sequential(layer)
    blip = BLIP(model, budget=0.3)
    x = torch.randn(8, layer.weight.shape[0] if not isinstance(layer, nn.Conv1d) else 4, 1)
    x = x.squeeze(-1) if isinstance(layer, nn.LayerNorm) else x
    blip.consolidate([x], forward=lambda x: model(x).flatten(1))
    grow_in_place(layer)
    with pytest.raises(ValueError, match=r"'0\.weight' had the shape"):
        blip.clamp_()


@pytest.mark.parametrize("value", [-1, 2])
def test_rows_that_began_when_none_can_have_are_refused(value: int) -> None:
    model, blip = started()
    by_module(model)
    blip.clamp_()
    state = blip.state_dict()
    del state["digest"]
    state["tensors"]["head.weight"]["began"][-1, -1] = value
    with pytest.raises(ValueError, match=r"'began' of 'head.weight' must be at least 0 and at most 1, got"):
        BLIP(model, **GUARDS["strict"]).load_state_dict(state)
