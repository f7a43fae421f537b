"""A network, tasks, training and snapshots for the tests of BLIP."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.directions import Directions
from bitfreeze.blip.rules import WeightRules

RULES = {
    "strict": Rules.strict(),
    "strict_total": WeightRules(rounding="total"),
    "following": Rules.following(),
    "released": Rules.released(),
    "text": Rules.text(),
    "algorithm1": Rules.text(algorithm1=True),
    "straight_through": Rules.text(straight_through=True),
}

# settings of a BLIP for behaviour that all guards share
GUARDS: dict[str, dict[str, Any]] = {
    "strict": {"rules": Rules.strict(), "budget": 0.3},
    "directions": {"rules": Rules.directions(temperature=1.0, damping=0.0, strongest=None, every=1), "tolerance": 0.02},
}

# for tests that edit weights after a task on purpose, where the warning about that is not their matter
OTHER_WEIGHTS = pytest.mark.filterwarnings("ignore:.*that the last task left, got")


class Net(nn.Module):
    """A backbone and one head a task."""

    def __init__(self, seed: int = 0, tasks: int = 4) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(tasks))

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        return self.heads[task](self.backbone(x))


def make_task(seed: int, rows: int = 32, inputs: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(rows, inputs, generator=generator)
    return x, torch.randint(classes, (rows,), generator=generator)


def train(
    model: nn.Module,
    task: tuple[Tensor, Tensor],
    optimizer: Any,
    steps: int = 5,
    forward: Callable[[Tensor], Tensor] | None = None,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    x, y = task
    forward = forward or model

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        closure()
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            optimizer.step()
        after_step()


def train_sgd(model: nn.Module, seed: int, rate: float = 1.0, steps: int = 5) -> None:
    """A task of its own, with an optimizer of its own."""
    train(model, make_task(seed), torch.optim.SGD(model.parameters(), lr=rate), steps)


def protected(seed: int = 0, **settings: Any) -> tuple[Net, BLIP]:
    """A network that has learned one task, attached to a BLIP that watches all of it. By default the rules are strict.

    ``guard`` in ``settings`` is a key of GUARDS.
    """
    model = Net(seed)
    blip = BLIP(model, **{**GUARDS[settings.pop("guard", "strict")], **settings})
    blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)])
    return model, blip


def watched(blip: BLIP) -> dict[str, Tensor]:
    parameters = dict(blip.model.named_parameters())
    return {name: parameters[name].detach() for name in blip.frozen_bits()}


def intervals_from_state(blip: BLIP) -> dict[str, tuple[Tensor, Tensor]]:
    """Eq. 4 in float64 from what is saved, without the library's arithmetic."""
    ends = {}
    for name, saved in blip.state_dict()["tensors"].items():
        centre = saved["centre"].double() * saved["bound"] / 2.0**blip.depth
        reach = saved["bound"] / 2.0 ** saved["bits"].double()
        ends[name] = centre - reach, centre + reach
    return ends


def assert_inside(blip: BLIP, slack: float = 0.0) -> None:
    intervals = blip.intervals()
    for name, value in watched(blip).items():
        if name in intervals:
            low, high = intervals[name]
            assert ((low - slack <= value) & (value <= high + slack)).all(), name
    if isinstance(blip._tensors, Directions):
        for name, layer in blip._tensors.layers.items():
            complete = layer.turning.all_inputs, layer.turning.all_outputs
            assert complete == (True, True), f"the coordinates of '{name}' do not tell all"
            beyond = layer.turning.turn(layer.change()).abs() - layer.radius * layer.width
            assert (beyond <= slack + ROUNDING[layer.radius.dtype]).all(), (name, beyond.max())


ROUNDING = {torch.float32: 5e-4, torch.float64: 1e-12}  # of turned weights that were moved from far away


def entries_at_an_end(blip: BLIP) -> int:
    """Entries at an end of their interval; of layers held along directions, coordinates at their edge."""
    if isinstance(blip._tensors, Directions):
        return sum(layer.at_edge() for layer in blip._tensors.layers.values())
    intervals = blip.intervals()
    return sum(
        int(((value == intervals[name][0]) | (value == intervals[name][1])).sum())
        for name, value in watched(blip).items()
    )


def shift(model: nn.Module, by: float = 100.0) -> None:
    """Edit the weights behind everybody's back."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def snapshot(model: nn.Module, blip: BLIP) -> dict[str, Any]:
    """All that a failed call must leave alone."""
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "learning": [parameter.requires_grad for parameter in model.parameters()],
        "random": torch.get_rng_state(),
        "blip": blip.state_dict(),
    }


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Bitwise equality of nested containers; NaN equals NaN."""
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor), where
        assert found.dtype == expected.dtype, where
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{where}: {m}")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, tuple):
        assert_same(dict(enumerate(found)), dict(enumerate(expected)), where)
    else:
        assert found == expected, where


def total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def assert_detached_after_failing(blip: BLIP, train: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A training at whose end ``consolidate`` raises leaves nothing that clamps later steps."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("there is no Fisher")

    monkeypatch.setattr(blip, "consolidate", fail)
    with pytest.raises(RuntimeError, match="there is no Fisher"):
        train()
    assert_inside(blip)
    parameters = list(blip.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(parameters, lr=1000.0).step()
    with pytest.raises(AssertionError):
        assert_inside(blip)
