"""Growth along directions, where the old task's loss is known in closed form.

A linear layer with a Gaussian likelihood loses KL = E |dW a|^2 / (2 sigma^2) on an old task. New outputs were no part
of that task, so they may change as they like, and the first outputs are held as in a layer that does not grow.
"""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.directions import DRIFT_FACTOR
from bitfreeze.blip.widening import TOO_MUCH
from bitfreeze.likelihoods import Gaussian
from support.held_along_directions import guard_of

WIDTH, OLD, NEW, SIGMA, TOLERANCE = 5, 3, 2, 0.5, 0.02

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.002),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
}


def inputs_of(seed: int) -> Tensor:
    """Correlated inputs, not centred."""
    draw = torch.Generator().manual_seed(seed)
    mix = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
    return torch.randn(30, WIDTH, generator=draw, dtype=torch.float64) @ mix + 0.5


def end_task(blip: BLIP, x: Tensor) -> None:
    """Consolidate with targets one step away along each output, so that E[delta delta^T] is 1 / sigma^2 exactly."""
    outputs = len(blip.model.weight)
    x = x.repeat_interleave(outputs, 0)
    steps = SIGMA * math.sqrt(outputs) * torch.eye(outputs, dtype=torch.float64).repeat(len(x) // outputs, 1)
    data = [(x, (blip.model(x) + steps).detach())]
    blip.consolidate(data, lambda batch: Gaussian(blip.model(batch), scale=SIGMA), labels="true")


def started(bias: bool, seed: int, **choices: object) -> BLIP:
    torch.manual_seed(seed)
    model = nn.Linear(WIDTH, OLD, bias=bias).double()
    rules = Rules.directions(**{"temperature": 1.0, "damping": 0.0, "strongest": None, "every": 1, **choices})
    blip = BLIP(model, rules=rules, tolerance=TOLERANCE)
    end_task(blip, inputs_of(seed))
    blip.attach()
    return blip


def grow(layer: nn.Module) -> None:
    for name, parameter in list(layer.named_parameters()):
        rows = torch.randn(NEW, *parameter.shape[1:], dtype=torch.float64)
        setattr(layer, name, nn.Parameter(torch.cat([parameter.detach(), rows])))


def train(model: nn.Module, optimizer: str, seed: int, steps: int = 30) -> None:
    """Least squares summed over outputs: what each output learns does not depend on the others."""
    x, draw = inputs_of(100 + seed), torch.Generator().manual_seed(seed)
    y = 3 * torch.randn(len(x), OLD + NEW, generator=draw, dtype=torch.float64)[:, : len(model.weight)]
    stepper = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(steps):
        stepper.zero_grad()
        (model(x) - y).square().mean(0).sum().backward()
        stepper.step()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strongest", [None, 2])
@pytest.mark.parametrize("seed", range(2))
def test_old_outputs_are_held_as_without_growth_and_new_ones_are_free(
    bias: bool, optimizer: str, strongest: int | None, seed: int
) -> None:
    blip = started(bias, seed, strongest=strongest)
    twin, its = copy.deepcopy((blip.model, blip))
    model, x, before = blip.model, inputs_of(seed), blip.model(inputs_of(seed)).detach()
    grow(model)
    free = copy.deepcopy(model)  # trained without a BLIP
    for net in (model, twin, free):
        train(net, optimizer, seed)
    for held in (blip, its):
        held.clamp_()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter[:OLD], dict(twin.named_parameters())[name], rtol=0, atol=1e-10)
        torch.testing.assert_close(parameter[OLD:], dict(free.named_parameters())[name][OLD:], rtol=0, atol=1e-10)
    assert (free.weight[:OLD] - model.weight[:OLD]).abs().max() > 1e-2, "the first rows were held"
    lost = float((model(x)[:, :OLD] - before).detach().square().sum(-1).mean()) / (2 * SIGMA**2)
    assert blip.drift() == pytest.approx(its.drift(), rel=1e-9)
    if strongest is None:
        assert 1e-5 < lost <= TOLERANCE / DRIFT_FACTOR * TOO_MUCH
        assert math.isclose(guard_of(blip).quadratic_cost(), lost, rel_tol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_the_next_task_turns_the_larger_layer_and_keeps_what_was_known(bias: bool) -> None:
    """The trace of the Fisher is the same in all coordinates: that of the first task, and that of the second."""
    blip, x = started(bias, seed=0), inputs_of(7)
    known = float(guard_of(blip).turnings["weight"].fisher.sum())
    grow(blip.model)
    blip.clamp_()
    turning = guard_of(blip).turnings["weight"]
    assert float(turning.fisher.sum()) == pytest.approx(known, rel=1e-12)
    assert turning.all_inputs
    assert turning.all_outputs
    spread = turning.spread()[0]
    assert not spread[OLD:].any()
    assert spread[:OLD].all()
    end_task(blip, x)
    joined = torch.cat([x, torch.ones(len(x), 1)], 1) if bias else x
    of_task = (OLD + NEW) * float(joined.square().sum(1).mean()) / SIGMA**2
    assert float(guard_of(blip).turnings["weight"].fisher.sum()) == pytest.approx(known + of_task, rel=1e-9)
    train(blip.model, "adam", 0)
    blip.clamp_()
    assert 0 < blip.drift() <= TOLERANCE * TOO_MUCH


def test_a_large_layer_grows_by_the_memory_of_its_rows() -> None:
    """Where there are fewer directions than outputs, new rows get none before the next task turns the layer."""
    torch.manual_seed(0)
    model = nn.Linear(4, 40)
    blip = BLIP(model, rules=Rules.directions(strongest=3))
    blip.consolidate([torch.randn(20, 4)])
    before = blip.nbytes()
    grow(model.double())
    blip.clamp_()
    per_row = sum(t.nbytes for t in blip.state_dict()["tensors"]["weight"].values() if isinstance(t, Tensor)) / 42
    assert blip.nbytes() - before < 42 * 2 * per_row
    assert guard_of(blip).turnings["weight"].outputs.shape == (1, 42, 3)


@pytest.mark.parametrize("fails", ["look", "commit"])
def test_an_error_after_growth_leaves_the_larger_layer_as_it_was(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blip = started(bias=True, seed=0)
    holder = nn.Module()
    holder.weight, holder.bias = blip.model.weight, blip.model.bias
    grow(blip.model)
    with torch.no_grad():
        blip.model.weight[:OLD] += 0.005  # beyond the intervals, so that consolidate moves it
    before = copy.deepcopy(blip.model.state_dict())
    monkeypatch.setattr(guard_of(blip), "commit" if fails == "commit" else "measure", _fail)
    with pytest.raises(RuntimeError, match="no disk"):
        end_task(blip, inputs_of(0))
    for name, value in blip.model.state_dict().items():
        assert torch.equal(value, before[name])


def _fail(*_: object) -> None:
    raise RuntimeError("no disk")
