"""Ways to train in less than float32, as docs/how-to/precision.md shows them. Weights end where they may be."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.rules import WeightRules
from bitfreeze.fisher import estimate

RULES = pytest.mark.parametrize("rules", [Rules.directions(every=1), Rules.strict()], ids=["directions", "strict"])
HALVES = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)


class Adapted(nn.Module):
    """A frozen layer in half precision, and a low-rank adapter in float32 beside it."""

    def __init__(self, inputs: int, outputs: int, half: torch.dtype) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).to(half).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 4, bias=False), nn.Linear(4, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x.float())).to(x.dtype)


def adapted_model(half: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Adapted(8, 16, half), nn.Tanh(), Adapted(16, 3, half))


def adapters(model: nn.Module) -> list[nn.Module]:
    return [part for layer in model if isinstance(layer, Adapted) for part in (layer.down, layer.up)]


def batches(task: int):
    made = torch.Generator().manual_seed(task)
    return torch.randn(64, 8, generator=made) + task, torch.randint(3, (64,), generator=made)


def budget_of(rules: Rules) -> float | None:
    """So much of a small network that steps reach the edges of intervals."""
    return 0.4 if isinstance(rules, WeightRules) else None


def outside(blip: BLIP) -> float:
    """How far the weights are outside of their intervals: what one more clamp moves."""
    before = [p.detach().clone() for p in blip.model.parameters()]
    blip.clamp_()
    return max((a - b).abs().max().item() for a, b in zip(before, blip.model.parameters(), strict=True))


@HALVES
@RULES
def test_float32_adapters_on_a_base_in_half_precision(half, rules):
    model = adapted_model(half)
    base = [layer.base.weight.clone() for layer in model if isinstance(layer, Adapted)]
    blip = BLIP(model, watch=adapters(model), rules=rules)
    blip.attach()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for task in range(2):
        x, y = batches(task)
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(half)).float(), y).backward()
            optimizer.step()
        if task:
            assert outside(blip) < 1e-5
        blip.consolidate([(x, y)], lambda x: model(x.to(half)).float())
    assert all(torch.equal(a, layer.base.weight) for a, layer in zip(base, (model[0], model[2]), strict=True))
    assert all(p.dtype == torch.float32 for part in adapters(model) for p in part.parameters())


@HALVES
def test_the_fisher_of_adapters_is_close_to_that_of_the_model_in_float32(half):
    model = adapted_model(half)
    x, y = batches(0)
    found, exact = fisher(model, x, y, half), fisher(model.float(), x, y, torch.float32)
    assert found.keys() == exact.keys()
    for name, value in exact.items():
        assert found[name].dtype == torch.float32
        assert (found[name] - value).norm() < 0.05 * value.norm(), name


def fisher(model, x, y, half):
    return estimate(model, [(x, y)], lambda x: model(x.to(half)).float(), labels="true", watch=adapters(model)).values


@RULES
def test_autocast_and_a_grad_scaler(rules):
    """Steps that the scaler skips change nothing, and all others are clamped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    blip = BLIP(model, rules=rules, budget=budget_of(rules))
    blip.attach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for task in range(2):
        x, y = batches(task)
        for step in range(10):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if step == 5:  # an overflow, as a scale that is too large makes it
                model[0].weight.grad[0, 0] = torch.inf
            before = [p.detach().clone() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert moved == (step != 5)
        if task:
            assert outside(blip) < 1e-5
        blip.consolidate([(x, y)])
    assert blip.tasks == 2


@RULES
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
def test_fused_and_foreach_optimizers_end_where_the_plain_one_does(rules, options):
    ends = []
    for chosen in ({"foreach": False, "fused": False}, options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        blip = BLIP(model, rules=rules, budget=budget_of(rules))
        blip.attach()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02, **chosen)
        for task in range(2):
            x, y = batches(task)
            for _ in range(10):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            blip.consolidate([(x, y)], generator=torch.Generator().manual_seed(task))
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*ends, strict=True))


@RULES
def test_a_compiled_model_trains_and_ends_tasks_as_the_plain_one(rules):
    ends = []
    for compiled in (False, True):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        called = torch.compile(model, backend="aot_eager") if compiled else model
        blip = BLIP(called, rules=rules, budget=budget_of(rules))
        blip.attach()
        optimizer = torch.optim.SGD(called.parameters(), lr=0.5)
        for task in range(2):
            x, y = batches(task)
            for _ in range(6):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = F.cross_entropy(called(x), y)
                loss.backward()
                optimizer.step()
            blip.consolidate([(x, y)], generator=torch.Generator().manual_seed(task))
        ends.append([p.detach().clone() for p in model.parameters()])
    torch.compiler.reset()
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(*ends, strict=True))
