"""Directions in training: forms of data, layouts, when layers are clamped, going on from a state."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam

from bitfreeze import BLIP, Rules
from support.held_along_directions import ALL, guard_of, started
from support.protected_nets import Net, assert_same, make_task, train, train_sgd

# forms of data


def test_a_generator_is_as_good_as_a_list() -> None:
    x, y = make_task(1)
    states = []
    for data in (list(zip(x.split(8), y.split(8), strict=True)), zip(x.split(8), y.split(8), strict=True)):
        _, blip = started()
        torch.manual_seed(4)
        blip.consolidate(data)
        states.append(blip.state_dict())
    assert_same(states[0], states[1])


def test_the_size_of_batches_is_no_matter() -> None:
    x, _ = make_task(1)
    found = []
    for size in (32, 5, 1):
        torch.manual_seed(0)
        model = Net().double()
        blip = BLIP(model, rules=ALL, tolerance=0.02)
        torch.manual_seed(4)
        blip.consolidate(x.double().split(size), labels="exact")
        layers = guard_of(blip).layers
        found.append({name: (*layer.fisher_of_entries(), layer.turning.input_energy) for name, layer in layers.items()})
    for other in found[1:]:
        for name, tensors in found[0].items():
            for a, b in zip(tensors, other[name], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("leading", [0, 2])
def test_memory_layouts_make_no_difference(leading: int) -> None:
    found = []
    for layout in ("plain", "channels_last", "transposed"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
        if layout == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        if layout == "transposed":
            for layer in (model[0], model[3]):
                layer.weight = nn.Parameter(layer.weight.detach().transpose(0, 1).contiguous().transpose(0, 1))
        blip = BLIP(
            model,
            rules=Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=2, leading=leading),
            tolerance=0.02,
        )
        blip.attach()
        x = torch.randn(16, 3, 4, 4)
        blip.consolidate([x], labels="exact")
        train(model, (x, torch.arange(16) % 3), SGD(model.parameters(), lr=0.5), steps=3)
        blip.clamp_()
        assert model[0].weight.is_contiguous() == (layout == "plain")
        found.append([parameter.detach() for parameter in model.parameters()])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


def test_float64_half_way_holds_the_same_coordinates() -> None:
    model, blip = started(tolerance=0.001)
    radius = guard_of(blip).layers["backbone.0.weight"].radius.double()
    model.double()
    x, y = make_task(1)
    train(model, (x.double(), y), SGD(model.parameters(), lr=5.0))
    layer = guard_of(blip).layers["backbone.0.weight"]
    assert layer.radius.dtype == torch.float64
    torch.testing.assert_close(layer.radius, radius, rtol=1e-6, atol=0)
    assert (layer.turning.turn(layer.change()).abs() <= layer.radius * layer.width + 1e-6).all()
    blip.consolidate([x.double()])
    model.float()
    train(model, (x, y), SGD(model.parameters(), lr=5.0))
    blip.consolidate([x])
    assert blip.tasks == 3


# when layers are clamped


def far(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = 100 * torch.ones_like(parameter)


@pytest.mark.parametrize("every", [1, 4])
def test_large_steps_are_clamped_at_once_and_small_ones_now_and_then(every: int) -> None:
    model, blip = started(Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=every, leading=0))
    optimizer = SGD(model.parameters(), lr=1.0)
    for _ in range(5):
        far(model)
        optimizer.step()
        assert blip.drift() <= 0.02 * 1.001
        assert guard_of(blip).layers["backbone.0.weight"].pace == 1
    paces = []
    for _ in range(20):
        for parameter in model.parameters():
            parameter.grad = 1e-7 * torch.ones_like(parameter)
        optimizer.step()
        paces.append(max(layer.pace for layer in guard_of(blip).layers.values()))
        assert all(layer.since < every or every == 1 for layer in guard_of(blip).layers.values())
    assert max(paces) == every
    blip.clamp_()
    assert all(layer.since == 0 for layer in guard_of(blip).layers.values())


@pytest.mark.parametrize("kind", ["weight", "bias", "both"])
def test_optimizers_of_one_tensor_of_a_layer(kind: str) -> None:
    model, blip = started(Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=2, leading=0))
    mine = [p for name, p in model.named_parameters() if kind == "both" or name.endswith(kind)]
    optimizer = SGD(mine, lr=1.0)
    for _ in range(6):
        far(model)
        optimizer.step()
        assert blip.drift() <= 0.02 * 1.001


# going on


@pytest.mark.parametrize("strongest", [None, 3])
@pytest.mark.parametrize("steps", [0, 3], ids=["between tasks", "within a task"])
def test_a_run_goes_on_bit_for_bit(strongest: int | None, steps: int) -> None:
    rules = Rules.directions(temperature=1.0, damping=0.0, strongest=strongest, every=4, leading=2, leading_every=2)
    model, blip = started(rules)
    train_sgd(model, 1, rate=0.1, steps=steps)
    other = Net(seed=9)
    resumed = BLIP(other, rules=rules, tolerance=0.02)
    resumed.attach()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(blip.state_dict()))
    for task in (2, 3):
        for net, each in ((model, blip), (other, resumed)):
            train(net, make_task(task), Adam(net.parameters(), lr=0.05), steps=7)
            torch.manual_seed(task)
            each.consolidate([make_task(task)])
        assert_same(dict(other.state_dict()), dict(model.state_dict()))
        assert_same(resumed.state_dict(), blip.state_dict())


@pytest.mark.filterwarnings("ignore:watched parameters are trained")
def test_a_failing_consolidate_puts_weights_and_state_back() -> None:
    model, blip = started()
    blip.attach().remove()
    train_sgd(model, 1, rate=50.0)
    weights, state = copy.deepcopy(dict(model.state_dict())), blip.state_dict()
    with pytest.raises(RuntimeError, match=r"far above the tolerance of 0\.02: no optimizer is attached"):
        blip.consolidate([make_task(1)])
    broken = (x if k else 1 / 0 for k, x in enumerate(make_task(1)[0].split(8)))
    for data, error, match in (
        ([], ValueError, "no samples"),
        ([torch.full((4, 6), torch.nan)], ValueError, "not finite"),
        (broken, ZeroDivisionError, "division"),
    ):
        with pytest.raises(error, match=match):
            blip.consolidate(data, outside="mend")
        assert_same(dict(model.state_dict()), weights)
        assert_same(blip.state_dict(), state)
    assert blip.consolidate([make_task(1)], outside="mend").drift <= 0.02


def test_coordinates_at_their_edge_are_counted() -> None:
    model, blip = started(tolerance=1e-4)
    train_sgd(model, 1, rate=5.0, steps=10)
    counted = sum(layer.at_edge() for layer in guard_of(blip).layers.values())
    report = blip.consolidate([make_task(1)])
    assert report.at_edge is not None
    assert sum(tensor.at_edge or 0 for tensor in report.tensors.values()) == counted > 0
    assert F.cross_entropy(model(make_task(0)[0]), make_task(0)[1]).isfinite()
