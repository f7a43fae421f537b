"""Directions: the Fisher along them against autograd, and what holding a layer does to its coordinates."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.directions import DRIFT_FACTOR, Directions
from bitfreeze.blip.held_tensor import radius_of
from bitfreeze.blip.turned_layer import TurnedLayer
from bitfreeze.blip.turning import Turning
from support.truth import Readout, cross_entropy_score, randomise

LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "linear without bias": (lambda: nn.Linear(5, 4, bias=False), (5,)),
    "linear with positions": (lambda: nn.Linear(5, 4), (3, 5)),
    "linear with two axes of positions": (lambda: nn.Linear(4, 3, bias=False), (2, 3, 4)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (3, 6)),
    "conv1d groups": (lambda: nn.Conv1d(4, 6, 2, groups=2, stride=2), (4, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 5, 6)),
    "conv2d groups": (lambda: nn.Conv2d(4, 4, (2, 3), groups=2, bias=False), (4, 4, 5)),
    "conv2d dilation": (lambda: nn.Conv2d(2, 3, 2, dilation=2, padding=(1, 0)), (2, 4, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1), (2, 2, 3, 2)),
    "conv3d groups": (lambda: nn.Conv3d(2, 4, 2, groups=2, stride=(1, 2, 1)), (2, 3, 4, 3)),
}


def measured(
    kind: str,
    strongest: int | None = None,
    tolerance: float = 0.5,
    tasks: int = 1,
    dtype: torch.dtype = torch.float64,
    **choices: Any,
) -> tuple[BLIP, Tensor, Tensor]:
    """A BLIP of one layer that has ended tasks, and the data of the last one. ``choices`` are of its rules."""
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    model = randomise(Readout(make(), torch.zeros(1, *shape)).to(dtype))
    rules = Rules.directions(temperature=1.0, damping=0.0, strongest=strongest, every=1, **choices)
    blip = BLIP(model, watch=model.layer, rules=rules, tolerance=tolerance)
    for _ in range(tasks):
        x, y = torch.randn(14, *shape, dtype=dtype), torch.randint(3, (14,))
        blip.consolidate(list(zip(x.split(5), y.split(5), strict=True)), labels="true")
    return blip, x, y


def only_layer(blip: BLIP) -> TurnedLayer:
    assert isinstance(blip._tensors, Directions)
    (layer,) = blip._tensors.layers.values()
    return layer


def single_gradients(blip: BLIP, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of each sample's log p as joined matrices [n, g, o, i]."""
    layer, rows = only_layer(blip), []
    parameters = [part.slot.parameter for part in layer.parts]
    for k in range(len(x)):
        score = cross_entropy_score(blip.model.eval(), x[k : k + 1], y[k : k + 1])
        rows.append(layer.joined(list(torch.autograd.grad(score, parameters))))
    return torch.stack(rows)


def assert_close(found: Tensor, truth: Tensor, share: float = 1e-9) -> None:
    assert found.shape == truth.shape
    assert (found - truth).abs().max() <= share * truth.abs().max(), (found - truth).abs().max() / truth.abs().max()


def assert_rounded(found: Tensor, truth: Tensor) -> None:
    """The truth in bfloat16, to one unit in the last place: bits of positive numbers count up as they do."""
    assert found.dtype == torch.bfloat16
    assert found.shape == truth.shape
    truth = torch.where(truth > 1e-20 * truth.max(), truth, 0.0).bfloat16()
    found = torch.where(found > 1e-20 * truth.max(), found, 0.0)
    assert (found.view(torch.int16).int() - truth.view(torch.int16).int()).abs().max() <= 1


@pytest.mark.parametrize("strongest", [None, 2], ids=["all", "two"])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_fisher_along_directions_is_that_of_an_explicitly_turned_layer(kind: str, strongest: int | None) -> None:
    blip, x, y = measured(kind, strongest)
    turning, gradients = only_layer(blip).turning, single_gradients(blip, x, y)
    turned = turning.turn(gradients)
    assert_close(turning.fisher, turned.square().mean(0))
    u, v = turning.inputs.unsqueeze(1), turning.outputs.unsqueeze(1)
    gradients = gradients.transpose(0, 1)  # [g, n, o, i]
    by_output, rest = gradients @ u - v @ (v.mT @ gradients @ u), gradients - gradients @ u @ u.mT
    if turning.by_output is None:
        assert by_output.abs().max() < 1e-12
    else:
        assert_rounded(turning.by_output, by_output.square().mean(1))
    if turning.all_inputs:
        assert rest.abs().max() < 1e-12
        assert all(part.fisher is None for part in only_layer(blip).parts)
    else:
        found = only_layer(blip).joined([part.fisher for part in only_layer(blip).parts])
        assert_rounded(found, rest.square().mean(1))


@pytest.mark.parametrize("kind", LAYERS)
def test_directions_are_orthonormal_and_energies_are_those_of_the_moments(kind: str) -> None:
    blip, _, _ = measured(kind)
    turning = only_layer(blip).turning
    for side, energy in ((turning.inputs, turning.input_energy), (turning.outputs, turning.output_energy)):
        assert_close(side.mT @ side, torch.eye(side.shape[-1]).double().expand(len(side), -1, -1), 1e-10)
        assert (energy[:, :-1] >= energy[:, 1:] - 1e-12).all()
        assert (energy >= 0).all()


def test_directions_of_a_linear_layer_diagonalise_its_moments() -> None:
    blip, x, _ = measured("linear")
    inputs = torch.cat([x, torch.ones(len(x), 1).double()], -1)
    turning = only_layer(blip).turning
    moment = turning.inputs[0].T @ (inputs.T @ inputs / len(x)) @ turning.inputs[0]
    assert_close(moment, torch.diag(turning.input_energy[0]), 1e-10)


@pytest.mark.parametrize("kind", ["linear", "conv2d", "conv1d groups"])
def test_a_second_task_adds_to_what_was_carried_over(kind: str) -> None:
    first, _, _ = measured(kind)
    both, x, y = measured(kind, tasks=2)
    before, after = only_layer(first).turning, only_layer(both).turning
    new = after.turn(single_gradients(both, x, y)).square().mean(0)
    assert_close(after.fisher, before.carried(after.inputs, after.outputs) + new)


# one side only, and coordinates that are kept


@pytest.mark.parametrize("strongest", [None, 2], ids=["all", "two"])
@pytest.mark.parametrize("kind", ["linear", "conv2d groups"])
@pytest.mark.parametrize("sides", ["inputs", "outputs"])
def test_a_side_that_is_not_turned_keeps_its_coordinates(sides: str, kind: str, strongest: int | None) -> None:
    blip, x, y = measured(kind, strongest, sides=sides)
    both, _, _ = measured(kind, strongest)
    turning, turned = only_layer(blip).turning, only_layer(both).turning
    kept, other = ("outputs", "inputs") if sides == "inputs" else ("inputs", "outputs")
    side = getattr(turning, kept)
    assert torch.equal(side, torch.eye(side.shape[1]).double().expand_as(side))
    assert torch.equal(getattr(turning, other), getattr(turned, other))
    assert_close(turning.fisher, turning.turn(single_gradients(blip, x, y)).square().mean(0))


@pytest.mark.parametrize("kind", ["linear", "conv1d groups"])
def test_coordinates_that_are_kept_add_up_the_fisher_of_each_task(kind: str) -> None:
    first, _, _ = measured(kind, refit=False)
    both, x, y = measured(kind, tasks=2, refit=False)
    before, after = only_layer(first).turning, only_layer(both).turning
    assert torch.equal(after.inputs, before.inputs)
    assert torch.equal(after.outputs, before.outputs)
    assert_close(after.fisher, before.fisher + after.turn(single_gradients(both, x, y)).square().mean(0))


# identity coordinates


@pytest.mark.parametrize("kind", ["linear", "conv2d groups", "conv3d"])
def test_along_the_weights_themselves_it_is_entry_by_entry(kind: str) -> None:
    blip, _, _ = measured(kind)
    layer = only_layer(blip)
    groups, outputs, inputs = layer.joined([part.local for part in layer.parts]).shape
    u, v = (torch.eye(n).double().expand(groups, n, n) for n in (inputs, outputs))
    fisher = torch.rand(groups, outputs, inputs).double()
    turning = Turning(u, v, torch.ones(groups, inputs).double(), torch.ones(groups, outputs).double(), fisher)
    along = TurnedLayer(layer.weight, layer.bias, turning, layer.prior)
    for part, own in zip(layer.parts, layer._split(fisher, -1), strict=True):
        part.fisher = own.reshape(part.local.shape)
        part.forget_caches()
    for _ in range(5):
        with torch.no_grad():
            for part in layer.parts:
                part.local.copy_(part.centre + torch.randn_like(part.centre))
        given = [part.local.detach().clone() for part in layer.parts]
        torch.testing.assert_close(along.cost(), sum(part.cost() for part in layer.parts), rtol=1e-10, atol=0)
        along.hold_()
        found = [part.local.detach().clone() for part in layer.parts]
        for part, value in zip(layer.parts, given, strict=True):
            part.local.detach().copy_(value)
            part.hold_()
        for value, part in zip(found, layer.parts, strict=True):
            torch.testing.assert_close(value, part.local.detach(), rtol=0, atol=1e-14)
        assert along.at_edge() == sum(part.at_edge() for part in layer.parts) > 0


# holding


def scatter(blip: BLIP, size: float, seed: int = 1) -> None:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in blip.model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("kind", ["linear", "linear with positions", "conv2d", "conv1d groups", "conv3d"])
def test_all_coordinates_lie_within_their_radius_afterwards(kind: str, size: float) -> None:
    blip, _, _ = measured(kind)
    layer = only_layer(blip)
    scatter(blip, size)
    outside = layer.turning.turn(layer.change()).abs() > layer.radius
    blip.clamp_()
    held = layer.turning.turn(layer.change())
    assert (held.abs() <= layer.radius * (1 + 1e-9) + 1e-12).all()
    assert blip.drift() <= 0.5 * (1 + 1e-9)
    if outside.any():  # those go to their edge
        torch.testing.assert_close(held.abs()[outside], layer.radius[outside], rtol=1e-6, atol=1e-12)
    once = [part.local.detach().clone() for part in layer.parts]
    blip.clamp_()
    for before, part in zip(once, layer.parts, strict=True):
        torch.testing.assert_close(part.local.detach(), before, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ["linear", "conv2d groups"])
@pytest.mark.parametrize("strongest", [None, 2])
def test_weights_that_are_inside_stay_to_the_bit(kind: str, strongest: int | None) -> None:
    blip, _, _ = measured(kind, strongest, dtype=torch.float32)
    layer = only_layer(blip)
    with torch.no_grad():
        for part in layer.parts:
            part.local.add_(1e-4 * torch.randn_like(part.local))
    before = [part.local.detach().clone() for part in layer.parts]
    blip.clamp_()
    assert all(torch.equal(part.local, was) for part, was in zip(layer.parts, before, strict=True))


@pytest.mark.parametrize("kind", ["linear", "linear with positions", "conv2d", "conv1d groups"])
@pytest.mark.parametrize("by", [0.01, 1.0, 100.0])
def test_the_clamp_of_the_rest_leaves_the_directions_alone(kind: str, by: float) -> None:
    """Entries of the rest are clamped one by one, so what is left of it has a part along the directions."""
    blip, _, _ = measured(kind, strongest=2)
    layer = only_layer(blip)
    scatter(blip, by)
    change = layer.change()
    turned = layer.turning.turn(change)
    rest = change - layer.turning.turn_back(turned)
    radius = radius_of(layer._rest_fisher(), layer.prior)
    if by == 1.0:
        leak = layer.turning.turn(rest.clamp(-radius, radius)).abs()
        assert (leak > 0.1 * layer.radius).any()  # so there is something to leave out
    layer.hold_()
    torch.testing.assert_close(layer.turning.turn(layer.change()), turned.clamp(-layer.radius, layer.radius))
    assert float(layer.cost()) <= 2 * layer.spent  # what a clamp counts is what it leaves, up to the rest's own part


@pytest.mark.parametrize("strongest", [None, 3])
def test_directions_that_nothing_uses_stay_free(strongest: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    blip = BLIP(
        model, rules=Rules.directions(temperature=1.0, damping=0.0, strongest=strongest, every=1), tolerance=1e-3
    )
    x = torch.randn(20, 6).double()
    used = torch.linalg.qr(torch.randn(6, 6).double()).Q
    x = x @ used[:, :2] @ used[:, :2].T  # inputs lie in a plane
    blip.consolidate([x], labels="exact")
    before, bias = model.weight.detach().clone(), model.bias.detach().clone()
    away = torch.randn(3, 4).double() @ used[:, 2:].T  # changes nothing that these inputs compute
    with torch.no_grad():
        model.weight += 100 * away
        model.bias += 5.0  # all logits together: nothing depends on that
    blip.clamp_()
    torch.testing.assert_close(model.weight.detach(), before + 100 * away, rtol=0, atol=1e-6)
    torch.testing.assert_close(model.bias.detach(), bias + 5, rtol=0, atol=1e-6)
    with torch.no_grad():
        model.weight += torch.randn(3, 2).double() @ used[:, :2].T
    assert blip.drift() > 0.01
    blip.clamp_()
    assert blip.drift() <= 2e-3


@pytest.mark.parametrize("kind", ["linear", "linear without bias", "conv2d", "conv1d groups"])
def test_leading_directions_that_are_all_of_them_hold_as_all_do(kind: str) -> None:
    blip, _, _ = measured(kind)
    layer = only_layer(blip)
    scatter(blip, 1.0)
    given = [part.local.detach().clone() for part in layer.parts]
    layer.hold_leading_(1000)
    leading = [part.local.detach().clone() for part in layer.parts]
    for part, value in zip(layer.parts, given, strict=True):
        part.local.detach().copy_(value)
    layer.hold_()
    for value, part in zip(leading, layer.parts, strict=True):
        torch.testing.assert_close(value, part.local.detach(), rtol=0, atol=1e-12)


def test_leading_directions_hold_only_themselves() -> None:
    blip, _, _ = measured("linear")
    layer = only_layer(blip)
    scatter(blip, 10.0)
    before = layer.turning.turn(layer.change())
    layer.hold_leading_(2)
    after = layer.turning.turn(layer.change())
    expected = before.clone()
    expected[:, :2, :2] = before[:, :2, :2].clamp(-layer.radius[:, :2, :2], layer.radius[:, :2, :2])
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-11)
    assert not torch.equal(after, before)


# scales


def test_four_times_the_tolerance_doubles_every_radius() -> None:
    radii = [only_layer(measured("conv2d", tolerance=tolerance)[0]).radius for tolerance in (0.1, 0.4)]
    torch.testing.assert_close(2 * radii[0], radii[1], rtol=1e-12, atol=0)


def test_scaled_inputs_scale_the_radius_and_not_the_drift() -> None:
    found = []
    for c in (1.0, 8.0):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)).double()
        with torch.no_grad():
            model[0].weight /= c
        x = c * torch.randn(20, 5).double()
        blip = BLIP(model, rules=Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=1), tolerance=0.5)
        blip.consolidate([x], labels="exact")
        with torch.no_grad():
            model[0].weight += 0.1 * torch.randn(4, 5).double() / c
            model[2].weight += 0.1 * torch.randn(3, 4).double()
        assert isinstance(blip._tensors, Directions)
        first, last = blip._tensors.layers.values()
        found.append((first.radius, last.radius, blip.prior, blip.drift()))
    (one, other, prior, drift), (one_c, other_c, prior_c, drift_c) = found
    finite = one < 1e6
    torch.testing.assert_close(one[finite] / 8, one_c[finite], rtol=1e-7, atol=0)
    torch.testing.assert_close(other[other < 1e6], other_c[other < 1e6], rtol=1e-7, atol=0)
    assert math.isclose(prior, prior_c)
    assert math.isclose(drift, drift_c, rel_tol=1e-9)
    assert drift > 0


def test_the_scale_of_a_training_loss_is_no_matter() -> None:
    """Bits follow from the likelihood of the outputs: what a loss is multiplied by does not enter."""
    first, second = (measured("linear")[0] for _ in range(2))
    optimizers = [torch.optim.Adam(blip.model.parameters(), lr=0.1) for blip in (first, second)]
    for blip, optimizer, scale in zip((first, second), optimizers, (1.0, 1024.0), strict=True):
        blip.attach()
        for _ in range(5):
            optimizer.zero_grad()
            (scale * blip.model(torch.ones(2, 5).double())[:, 0].sum()).backward()
            optimizer.step()
    torch.testing.assert_close(first.model.layer.weight, second.model.layer.weight, rtol=1e-5, atol=1e-9)


def test_a_change_of_many_outputs_along_a_strong_input_costs_what_it_does() -> None:
    """Four output directions hold a tenth of the gradients of 40 equal outputs. All others change together."""
    draw = torch.Generator().manual_seed(0)
    strong = torch.linalg.qr(torch.randn(20, 1, generator=draw, dtype=torch.float64)).Q
    x = torch.randn(400, 1, generator=draw, dtype=torch.float64) @ strong.T
    x = x + 0.01 * torch.randn(400, 20, generator=draw, dtype=torch.float64)
    model = nn.Linear(20, 40, bias=False).double()
    nn.init.zeros_(model.weight)
    blip = BLIP(model, rules=Rules.directions(strongest=4, damping=0.0), tolerance=0.05)
    blip.consolidate([x], labels="exact")
    change = 0.01 * torch.randn(40, 1, generator=draw, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(change @ strong.T)
        true = (torch.full((), 1 / 40).log() - model(x).log_softmax(1)).mean(1).mean().item()
    assert blip.drift() / DRIFT_FACTOR == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("strongest", [None, 2, 4], ids=["all", "two", "four"])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_report_counts_each_weight_once(kind: str, strongest: int | None) -> None:
    """Coordinates of the parts overlap: only as many of them count as there are weights."""
    blip, _, _ = measured(kind, strongest)
    entries = sum(part.local.numel() for part in only_layer(blip).parts)
    x = torch.randn(14, *LAYERS[kind][1], dtype=torch.float64)
    report = blip.consolidate([x], labels="exact")
    assert sum(tensor.entries for tensor in report.tensors.values()) == entries
