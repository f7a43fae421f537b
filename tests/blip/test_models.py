"""Kinds of models: frozen, tied, late, rebound, wrapped, compiled and copied parameters; layouts and precisions."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from bitfreeze import BLIP, Rules, diagonal_fisher, information_gain
from bitfreeze.bits import extra_bits
from support.protected_nets import (
    GUARDS,
    OTHER_WEIGHTS,
    RULES,
    Net,
    assert_inside,
    assert_same,
    entries_at_an_end,
    make_task,
    protected,
    shift,
    snapshot,
    train,
    train_sgd,
    watched,
)

pytestmark = pytest.mark.filterwarnings("ignore:no weight reached the edge", "ignore:no watched weight has changed")


class Tied(nn.Module):
    """A tiny language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 5)
        self.mix = nn.Linear(5, 5)
        self.decode = nn.Linear(5, 7, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.mix(self.embed(tokens))))


def test_a_tied_tensor_is_kept_once(guard: str) -> None:
    model = Tied()
    blip = BLIP(model, **GUARDS[guard])
    tokens = torch.randint(7, (8, 4))
    blip.consolidate([tokens])
    assert list(blip.frozen_bits()) == ["embed.weight", "mix.weight", "mix.bias"]
    if guard == "strict":
        assert blip.nbytes() == 9 * sum(parameter.numel() for parameter in model.parameters())
    assert blip.frozen_bits()["embed.weight"].any()
    shift(model)
    blip.clamp_()
    assert_inside(blip)
    assert model.decode.weight is model.embed.weight


def test_parameters_that_do_not_learn_are_measured_and_left_alone(guard: str) -> None:
    model = Net()
    model.backbone[0].requires_grad_(False)
    before = model.backbone[0].weight.clone()
    blip = BLIP(model, **GUARDS[guard])
    blip.attach()
    for task in range(2):
        train(model, make_task(task), SGD([p for p in model.parameters() if p.requires_grad], lr=1.0))
        blip.consolidate([make_task(task)])
    assert torch.equal(model.backbone[0].weight, before)
    assert not model.backbone[0].weight.requires_grad
    assert model.backbone[2].weight.requires_grad
    assert blip.frozen_bits()["backbone.0.weight"].any()


def test_a_single_name_can_be_watched(guard: str) -> None:
    model = Net()
    assert list(BLIP(model, watch="backbone.0.weight").frozen_bits()) == ["backbone.0.weight"]
    names = ["heads.1.bias", "backbone.0.weight"]
    assert sorted(BLIP(model, watch=names).frozen_bits()) == sorted(names)
    assert sorted(BLIP(model, watch=iter(names)).frozen_bits()) == sorted(names)
    assert list(BLIP(model, watch=[model.heads[2], "backbone.2.bias"]).frozen_bits()) == [
        "backbone.2.bias", "heads.2.weight", "heads.2.bias",
    ]  # fmt: skip


@OTHER_WEIGHTS
def test_a_layer_that_appears_later_starts_at_its_own_first_task() -> None:
    model, blip = protected(prior=1e-3)
    torch.manual_seed(1)
    model.heads.append(nn.Linear(8, 3))
    name, data = "heads.4.weight", [make_task(1)]
    train(model, make_task(1), SGD(model.parameters(), lr=1.0), forward=lambda x: model(x, 4))
    fisher = diagonal_fisher(model, data, lambda x: model(x, 4), labels="exact")[name]
    blip.consolidate(data, forward=lambda x: model(x, 4), labels="exact")
    tensors = blip.state_dict()["tensors"]
    assert (tensors[name]["tasks"], tensors["backbone.0.weight"]["tasks"]) == (1, 2)
    first = torch.tensor(1e-3 * tensors[name]["prior_scale"])
    expected = extra_bits(information_gain(fisher, first, 1), torch.zeros(3, 8, dtype=torch.uint8), 20)
    assert torch.equal(tensors[name]["bits"], expected)
    assert expected.any()
    shift(model)
    train(model, make_task(2), SGD(model.parameters(), lr=1.0), forward=lambda x: model(x, 4))
    assert_inside(blip)


# rebinding


def by_assignment(model: Net) -> None:
    model.backbone[0].weight = nn.Parameter(model.backbone[0].weight.detach().clone() + 100)


def by_loading(model: Net) -> None:
    model.load_state_dict({n: v + 100 for n, v in model.state_dict().items()}, assign=True)


def by_data(model: Net) -> None:
    model.backbone[0].weight.data = model.backbone[0].weight.data + 100


@pytest.mark.parametrize("rebind", [by_assignment, by_loading, by_data])
def test_a_rebound_parameter_is_clamped(rebind, guard: str) -> None:
    model, blip = protected(guard=guard)
    old = model.backbone[0].weight
    rebind(model)
    assert (model.backbone[0].weight is not old) == (rebind is not by_data)
    assert model.backbone[0].weight.min() > 90
    with pytest.warns(UserWarning, match="that the last task left, got") if rebind is not by_data else nullcontext():
        train_sgd(model, 1, steps=1)
    assert_inside(blip)


def test_another_shape_under_a_known_name_is_refused(guard: str) -> None:
    model, blip = protected(guard=guard)
    model.heads[0] = nn.Linear(8, 2)
    before = snapshot(model, blip)
    with pytest.raises(ValueError, match=r"'heads.0.weight' had the shape \[3, 8\] .* has \[2, 8\] now: give .* name"):
        blip.consolidate([make_task(1)])
    assert_same(snapshot(model, blip), before)


# layouts, precision and device


def test_other_memory_layouts(guard: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 2))
    model = model.to(memory_format=torch.channels_last)
    blip = BLIP(model, **GUARDS[guard])
    x = torch.randn(10, 3, 4, 4)
    for _ in range(2):
        blip.consolidate([x])
        shift(model)
        blip.clamp_()
        assert_inside(blip)
    assert not model[0].weight.is_contiguous()
    plain = copy.deepcopy(blip.model).to(memory_format=torch.contiguous_format)
    other = BLIP(plain, **GUARDS[guard])
    other.load_state_dict(blip.state_dict())
    assert_same(other.intervals(), blip.intervals())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype: torch.dtype, guard: str) -> None:
    with pytest.raises(TypeError, match="cannot hold the bits to be frozen; keep float32 master weights"):
        BLIP(Net().to(dtype))
    model, blip = protected(guard=guard)
    before = blip.state_dict()
    model.to(dtype)
    for act in (blip.clamp_, blip.attach, lambda: blip.consolidate([make_task(0)])):
        with pytest.raises(TypeError, match=r"'backbone\.0\.weight' must be float32 .* got b?float16"):
            act()
    assert_same(blip.state_dict(), before)


@pytest.mark.parametrize("rules", ["strict", "following", "released", "text", "straight_through"])
@pytest.mark.parametrize("seed", range(3))
def test_to_double_and_back_half_way(rules: str, seed: int) -> None:
    """Ends of a range that is no power of two are rounded otherwise in float64: that is not a parameter outside."""
    model, blip = protected(seed, prior=1e-4, rules=RULES[rules])
    slack = 0 if rules in ("strict", "following") else 1e-6
    for task, dtype in enumerate((torch.float64, torch.float32, torch.float64), start=1):
        train_sgd(model, task, rate=5.0, steps=10)
        assert entries_at_an_end(blip) > 0
        model.to(dtype)
        before = blip.intervals()
        x = make_task(task)[0].to(dtype)
        blip.consolidate([x])
        assert_inside(blip, slack)
        for name, (low, high) in blip.intervals().items():
            assert low.dtype == dtype
            if rules == "strict":
                assert ((before[name][0] <= low) & (high <= before[name][1])).all()
        train(model, (x, make_task(task)[1]), SGD(model.parameters(), lr=1.0), after_step=lambda: assert_inside(blip))
        model.float()


def test_the_cached_ends_have_the_precision_of_the_parameter() -> None:
    model, blip = protected()
    entries = sum(parameter.numel() for parameter in model.parameters())
    for dtype, size in ((torch.float32, 4), (torch.float64, 8), (torch.float32, 4)):
        model.to(dtype)
        blip.clamp_()
        assert blip.nbytes(cache=True) == (9 + 2 * size) * entries


def test_float64_from_the_start() -> None:
    model = Net().double()
    blip = BLIP(model, bits=23, budget=0.3)
    blip.attach()
    for task in range(3):
        x, y = make_task(task)
        train(model, (x.double(), y), SGD(model.parameters(), lr=1.0))
        blip.consolidate([x.double()])
        assert_inside(blip)
    assert blip.nbytes() == 9 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("rules", ["strict", "straight_through"])
def test_the_state_follows_the_model_to_another_device(rules: str, guard: str) -> None:
    model, blip = protected(rules=RULES[rules])
    blip.clamp_()
    model.to("meta")
    blip.clamp_()
    for saved in blip.state_dict()["tensors"].values():
        assert {value.device.type for value in saved.values() if isinstance(value, Tensor)} == {"meta"}
    for low, high in blip.intervals().values():
        assert low.device.type == high.device.type == "meta"


@pytest.mark.filterwarnings("ignore:.*has run out of free bits")
@pytest.mark.parametrize("rules", [Rules.strict(), Rules.released()], ids=["strict", "released"])
def test_depths_from_1_to_23(rules: Rules) -> None:
    for depth in (1, 2, 8, 23):
        model = Net()
        blip = BLIP(model, bits=depth, prior=1e-3, rules=rules)
        with blip.attach():
            for task in range(3):
                train_sgd(model, task)
                assert_inside(blip)
                blip.consolidate([make_task(task)])
        assert all((value <= depth).all() for value in blip.frozen_bits().values())
        assert 0 < blip.capacity() <= 1
        assert len(watched(blip)) == 12
