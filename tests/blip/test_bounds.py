"""The range and the prior scale of each kind of tensor."""

from math import ceil, log2, sqrt

import pytest
import torch
from torch import nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.bounds import bound_and_prior_scale
from bitfreeze.model.layers import fan_in
from bitfreeze.model.parameters import find_parameters
from support.protected_nets import make_task

LAYERS = {
    "linear": (lambda: nn.Linear(28, 5), "weight", 28),
    "conv1d": (lambda: nn.Conv1d(4, 8, 5), "weight", 4 * 5),
    "conv2d in groups": (lambda: nn.Conv2d(6, 9, (3, 2), groups=3), "weight", 2 * 3 * 2),
    "conv3d depthwise": (lambda: nn.Conv3d(4, 4, 3, groups=4), "weight", 27),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), "weight", 3 * 9),
    "bilinear": (lambda: nn.Bilinear(3, 5, 2), "weight", 15),
    "attention": (lambda: nn.MultiheadAttention(8, 2), "in_proj_weight", 8),
    "attention, keys": (lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=10), "k_proj_weight", 6),
    "attention, values": (lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=10), "v_proj_weight", 10),
    "attention, out": (lambda: nn.MultiheadAttention(8, 2), "out_proj.weight", 8),
}


def bound_of(model: nn.Module, name: str, rules: Rules, constant: float = 6.0, depth: int = 20) -> tuple[float, float]:
    slots = {slot.name: slot for slot in find_parameters(model)}
    return bound_and_prior_scale(slots[name], constant, depth, rules)


def power_above(value: float) -> float:
    return 2.0 ** ceil(log2(value))


@pytest.mark.parametrize(("make", "name", "inputs"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("constant", [6.0, 20.0])
def test_a_layers_weights_get_c_over_the_root_of_fan_in(make, name: str, inputs: int, constant: float) -> None:
    assert bound_of(make(), name, Rules.released(), constant) == pytest.approx((constant / sqrt(inputs), inputs))
    bound = power_above(constant / sqrt(inputs))
    assert bound_of(make(), name, Rules.strict(), constant) == (bound, (constant / bound) ** 2)


def test_fan_in_is_told_by_the_module_not_by_the_shape() -> None:
    linear, transposed = nn.Linear(3, 7), nn.ConvTranspose1d(7, 3, 1)
    assert linear.weight.shape == transposed.weight.shape[:2]
    assert (fan_in(linear, "weight"), fan_in(transposed, "weight")) == (3, 7)
    assert fan_in(nn.Embedding(3, 7), "weight") is None
    assert fan_in(linear, "bias") is None


@pytest.mark.parametrize("make", [lambda: nn.Linear(28, 5), lambda: nn.Conv2d(7, 3, 2)], ids=["linear", "conv"])
def test_biases_have_bound_1_and_as_released_the_prior_of_their_weights(make) -> None:
    assert bound_of(make(), "bias", Rules.released()) == (1.0, 28)
    assert bound_of(make(), "bias", Rules.strict()) == (1.0, 36)


BARE = {
    "batch norm": (lambda: nn.BatchNorm1d(4), "weight", 2.0),
    "layer norm": (lambda: nn.LayerNorm(4), "weight", 2.0),
    "norm bias": (lambda: nn.LayerNorm(4), "bias", 1.0),
    "embedding": (lambda: nn.Embedding.from_pretrained(torch.tensor([[0.3, -1.7]])), "weight", 3.4),
    "lstm": (lambda: nn.LSTM(3, 4), "bias_hh_l0", 1.0),
    "bare": (lambda: nn.ParameterDict({"position": torch.full((3, 2), -0.4)}), "position", 0.8),
    "bare and small": (lambda: nn.ParameterDict({"position": torch.zeros(3, 2)}), "position", 0.25),
}


@pytest.mark.parametrize(("make", "name", "bound"), BARE.values(), ids=BARE)
def test_other_tensors_get_twice_their_largest_value(make, name: str, bound: float) -> None:
    assert bound_of(make(), name, Rules.text()) == pytest.approx((bound, (6 / bound) ** 2))
    assert bound_of(make(), name, Rules.strict()) == (power_above(bound), (6 / power_above(bound)) ** 2)


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("rules", [Rules.strict(), Rules.released()], ids=["strict", "released"])
def test_given_values_beyond_the_range_widen_it_with_headroom_of_2(name: str, rules: Rules) -> None:
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        getattr(layer, name).view(-1)[0] = -40.0
    bound, scale = bound_of(layer, name, rules)
    assert bound == (128.0 if rules.power_of_two else 80.0)
    constant = 6 if name == "weight" or rules == Rules.strict() else 2  # a released bias: prior * fan_in at bound 1
    assert scale == pytest.approx((constant / bound) ** 2)


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_a_value_at_the_very_edge_widens_the_range_too(excess: int) -> None:
    layer = nn.Linear(9, 1)  # bound 2
    edge = 2 * (1 - 2.0**-20)
    with torch.no_grad():
        layer.weight[0, 0] = edge * (1 + excess * 2.0**-22)
    assert bound_of(layer, "weight", Rules.released())[0] == pytest.approx(4.0 if excess > 0 else 2.0)


@pytest.mark.parametrize("rules", [Rules.strict(), Rules.released(), Rules.text()], ids=["strict", "released", "text"])
def test_the_precision_kept_does_not_depend_on_the_range(rules: Rules) -> None:
    """Radius after the first task, bound * sqrt(F_0 / F), is the same for any width of the range."""
    radii = []
    for largest in (0.1, 3.0, 50.0, 1e4):
        layer = nn.Linear(16, 2, bias=False)
        with torch.no_grad():
            layer.weight.view(-1)[0] = largest
        bound, scale = bound_of(layer, "weight", rules)
        radii.append(bound * sqrt(scale))
    assert radii == pytest.approx([6.0] * 4)


@pytest.mark.parametrize("rules", [Rules.strict(), Rules.released()], ids=["strict", "released"])
@pytest.mark.parametrize("size", [0.01, 1.0, 300.0])
def test_nothing_given_is_clipped(rules: Rules, size: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(size)
    before = [parameter.clone() for parameter in model.parameters()]
    blip = BLIP(model, rules=rules)
    blip.attach()
    blip.clamp_()
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


def test_questions_do_not_fix_the_bounds() -> None:
    """Only attach, clamp or consolidate do: weights may still be loaded after a look."""
    model = nn.Sequential(nn.Linear(6, 3))
    blip = BLIP(model)
    blip.capacity(), blip.frozen_bits(), blip.nbytes(), blip.intervals()
    with torch.no_grad():
        model[0].weight.fill_(70.0)
    blip.clamp_()
    assert (model[0].weight == 70.0).all()


def test_bounds_stay_once_fixed() -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    blip = BLIP(model)
    blip.attach()
    before = {name: state["bound"] for name, state in blip.state_dict()["tensors"].items()}
    with torch.no_grad():
        model[0].weight.fill_(1.5)
    blip.consolidate([make_task(0)[0]])
    assert {name: state["bound"] for name, state in blip.state_dict()["tensors"].items()} == before


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_have_no_bound(value: float) -> None:
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.bias[1] = value
    with pytest.raises(ValueError, match="'bias' has NaN or infinite entries"):
        bound_of(layer, "bias", Rules.strict())
