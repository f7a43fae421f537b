"""Models whose KL from the old task is known in closed form: what BLIP promises, after any training.

A linear layer with a Gaussian likelihood loses KL = E |dW a|^2 / (2 sigma^2) when its weights change by dW: a quadratic
form. Targets are chosen so that the measured Fisher is exact.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.directions import DRIFT_FACTOR
from bitfreeze.blip.widening import TOO_MUCH
from bitfreeze.likelihoods import Gaussian

OUTPUTS, SIGMA = 3, 0.5

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
    "sgd, large": lambda p: torch.optim.SGD(p, lr=5.0, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam, large": lambda p: torch.optim.Adam(p, lr=100.0),
}


def inputs_of(seed: int, width: int = 5) -> Tensor:
    """Correlated inputs, not centred."""
    draw = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=draw, dtype=torch.float64)
    return torch.randn(30, width, generator=draw, dtype=torch.float64) @ mix + 0.5


def exact_data(model: nn.Module, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Each input with a target one step away along each output: E[delta delta^T] is 1 / sigma^2 at each input."""
    x = x.repeat_interleave(OUTPUTS, 0)
    steps = SIGMA * math.sqrt(OUTPUTS) * torch.eye(OUTPUTS, dtype=torch.float64).repeat(len(x) // OUTPUTS, 1)
    return [(x, (model(x) + steps).detach())]


def end_task(blip: BLIP, x: Tensor) -> None:
    blip.consolidate(exact_data(blip.model, x), lambda batch: Gaussian(blip.model(batch), scale=SIGMA), labels="true")


def kl(model: nn.Module, x: Tensor, before: Tensor) -> float:
    """Mean KL between the old and the new predictions."""
    return float((model(x) - before).detach().square().sum(-1).mean()) / (2 * SIGMA**2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, steps: int = 20) -> None:
    x, draw = inputs_of(100 + seed), torch.Generator().manual_seed(seed)
    y = 3 * torch.randn(len(x), OUTPUTS, generator=draw, dtype=torch.float64)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def make(bias: bool, tolerance: float, seed: int = 0, **choices: object) -> BLIP:
    torch.manual_seed(seed)
    model = nn.Linear(5, OUTPUTS, bias=bias).double()
    rules = Rules.directions(**{"temperature": 1.0, "damping": 0.0, "strongest": None, "every": 1, **choices})
    return BLIP(model, rules=rules, tolerance=tolerance)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("seed", range(3))
def test_the_old_task_loses_at_most_the_tolerance(bias: bool, optimizer: str, seed: int) -> None:
    blip = make(bias, tolerance=0.02, seed=seed)
    model, x = blip.model, inputs_of(seed)
    end_task(blip, x)
    before = model(x).detach()
    blip.attach()
    train(model, OPTIMIZERS[optimizer](model.parameters()), seed)
    blip.clamp_()
    lost = kl(model, x, before)
    assert 1e-4 < lost <= 0.02 / DRIFT_FACTOR * TOO_MUCH
    assert math.isclose(blip._tensors.quadratic_cost(), lost, rel_tol=1e-6)


@pytest.mark.parametrize("every", [1, 64])
@pytest.mark.parametrize("rate", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("seed", range(2))
def test_large_steps_within_wide_intervals_cost_no_more_when_the_task_ends(every: int, rate: float, seed: int) -> None:
    """Small steps widen the intervals, as in a warm-up; then a large one may go to their edges."""
    blip = make(bias=True, tolerance=0.02, seed=seed, every=every)
    model, x = blip.model, inputs_of(seed)
    end_task(blip, x)
    before = model(x).detach()
    blip.attach()
    train(model, torch.optim.SGD(model.parameters(), lr=rate), seed, steps=400)
    assert blip._tensors.widening.width > 1 or rate == 1e-3
    train(model, torch.optim.SGD(model.parameters(), lr=0.5), seed, steps=1)
    assert DRIFT_FACTOR * kl(model, x, before) > 0.02 * 1.1 or rate == 1e-3
    report = blip.consolidate(exact_data(model, x), lambda batch: Gaussian(model(batch), scale=SIGMA), labels="true")
    assert DRIFT_FACTOR * kl(model, x, before) <= 0.02 * TOO_MUCH
    assert math.isclose(report.drift, DRIFT_FACTOR * kl(model, x, before), rel_tol=1e-6)


def test_clamping_twice_within_wide_intervals_is_clamping_once() -> None:
    blip = make(bias=True, tolerance=0.02, every=64)
    model = blip.model
    end_task(blip, inputs_of(0))
    blip.attach()
    train(model, torch.optim.SGD(model.parameters(), lr=1e-7), 0, steps=400)
    train(model, torch.optim.SGD(model.parameters(), lr=0.5), 0, steps=1)
    blip.clamp_()
    once = [parameter.detach().clone() for parameter in model.parameters()]
    blip.clamp_()
    torch.testing.assert_close([parameter.detach() for parameter in model.parameters()], once, rtol=0, atol=1e-12)


def test_all_coordinates_at_their_edges_cost_just_the_tolerance() -> None:
    blip = make(bias=True, tolerance=0.02)
    x = inputs_of(0)
    end_task(blip, x)
    before = blip.model(x).detach()
    with torch.no_grad():
        for parameter in blip.model.parameters():
            parameter.add_(1e4 * torch.randn_like(parameter))
    blip.clamp_()
    assert math.isclose(DRIFT_FACTOR * kl(blip.model, x, before), 0.02, rel_tol=1e-6)
    assert math.isclose(blip.drift(), 0.02, rel_tol=1e-6)


@pytest.mark.filterwarnings("ignore:watched parameters are trained")
@pytest.mark.parametrize("seed", range(3))
def test_far_outside_without_attach_clamp_brings_it_back(seed: int) -> None:
    blip = make(bias=True, tolerance=0.02, seed=seed)
    model, x = blip.model, inputs_of(seed)
    end_task(blip, x)
    before = model(x).detach()
    train(model, torch.optim.Adam(model.parameters(), lr=1.0), seed)
    assert math.isclose(blip.drift(), DRIFT_FACTOR * kl(model, x, before), rel_tol=1e-6)
    assert blip.drift() > 1
    blip.clamp_()
    assert kl(model, x, before) <= 0.02 / DRIFT_FACTOR * (1 + 1e-9)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fisher", ["sum", "mean"])
def test_over_three_tasks_all_earlier_ones_count_together(bias: bool, fisher: str) -> None:
    """The moments of all tasks are diagonal in their common coordinates, so the sum of their losses is exact."""
    blip = make(bias, tolerance=0.02, fisher=fisher)
    model = blip.model
    blip.attach()
    tasks: list[Tensor] = []
    for task in range(4):
        x = inputs_of(task)
        before = [model(old).detach() for old in tasks]
        train(model, torch.optim.Adam(model.parameters(), lr=0.1), task)
        lost = sum(kl(model, old, was) for old, was in zip(tasks, before, strict=True))
        if tasks:
            scale = 1 if fisher == "sum" else len(tasks)
            assert math.isclose(blip._tensors.quadratic_cost() * scale, lost, rel_tol=1e-6)
            assert 1e-4 < blip.drift() <= 0.02 * (1 + 1e-9)
        end_task(blip, x)
        tasks.append(x)


def test_the_unit_of_the_outputs_is_no_matter() -> None:
    """Outputs in another unit: the same model, the same radius of what it predicts, the same drift."""
    found = []
    for unit in (1.0, 1000.0):
        blip = make(bias=True, tolerance=0.02)
        model, x = blip.model, inputs_of(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(unit)
        steps = unit * SIGMA * math.sqrt(OUTPUTS) * torch.eye(OUTPUTS, dtype=torch.float64).repeat(len(x), 1)
        many = x.repeat_interleave(OUTPUTS, 0)
        data = [(many, (model(many) + steps).detach())]
        scale = unit * SIGMA
        blip.consolidate(data, lambda b, m=model, s=scale: Gaussian(m(b), scale=s), labels="true")
        (layer,) = blip._tensors.layers.values()
        with torch.no_grad():
            model.weight += unit * 0.01
        found.append((layer.radius / unit, blip.drift()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=0)
    assert math.isclose(found[0][1], found[1][1], rel_tol=1e-9)
    assert found[0][1] > 0


@pytest.mark.parametrize("strongest", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_with_few_directions_the_tolerance_holds_up_to_twice(strongest: int, seed: int) -> None:
    """What directions leave out is held entry by entry, as if entries were independent: inputs here are correlated."""
    blip = make(bias=True, tolerance=0.02, seed=seed, strongest=strongest)
    model, x = blip.model, inputs_of(seed)
    end_task(blip, x)
    before = model(x).detach()
    blip.attach()
    train(model, torch.optim.Adam(model.parameters(), lr=0.3), seed)
    blip.clamp_()
    assert blip.drift() <= 0.02 * 2  # coordinates and entries of the rest are more than K
    assert kl(model, x, before) <= 0.02 * 2  # entries of the rest may move together
