"""The first task freezes the share of the bits in use that was asked for, whatever the network and its loss."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bitfreeze import BLIP, Rules
from support.protected_nets import Net, make_task


class Transformer(nn.Module):
    """Two layers of self-attention over a few tokens, with an embedding and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.position = nn.Parameter(torch.randn(6, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens) + self.position).mean(1))


def mlp() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 5))
    return model, torch.randn(64, 20)


def convolutional() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    return model, torch.randn(40, 3, 8, 8)


def transformer() -> tuple[nn.Module, Tensor]:
    return Transformer(), torch.randint(11, (32, 6))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("make", [mlp, convolutional, transformer])
@pytest.mark.parametrize("rules", [Rules.strict(), Rules.text()], ids=["strict", "text"])
def test_the_budget_is_met(rules: Rules, make: Callable[[], tuple[nn.Module, Tensor]], scale: float) -> None:
    torch.manual_seed(1)
    model, x = make()
    blip = BLIP(model, rules=rules)
    report = blip.consolidate([x], forward=lambda x: scale * model(x), labels="exact")
    assert report.share == pytest.approx(0.1, rel=0.005)
    touched = sum(tensor.touched_entries for tensor in report.tensors.values())
    assert sum(int(b.sum()) for b in blip.frozen_bits().values()) == pytest.approx(0.1 * 20 * touched, rel=0.005)
    assert report.prior == blip.prior


@pytest.mark.filterwarnings("ignore:.*has run out of free bits")
@pytest.mark.parametrize("budget", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("depth", [8, 20])
def test_other_budgets_and_depths(budget: float, depth: int) -> None:
    torch.manual_seed(2)
    model, x = mlp()
    assert BLIP(model, budget=budget, bits=depth).consolidate([x]).share == pytest.approx(budget, rel=0.005)


def test_only_parameters_in_use_count() -> None:
    """Heads of other tasks have no Fisher: they neither use up the budget nor get bits."""
    model = Net(tasks=50)
    blip = BLIP(model, budget=0.1)
    report = blip.consolidate([make_task(0)], labels="exact")
    assert report.share == pytest.approx(0.1, rel=0.02)
    assert report.used < 0.03
    bits = blip.frozen_bits()
    assert not any(bits[f"heads.{k}.weight"].any() for k in range(1, 50))


def test_only_the_first_task_is_held_to_the_budget() -> None:
    model = Net()
    blip = BLIP(model, budget=0.1)
    first = blip.consolidate([make_task(0)])
    second = blip.consolidate([make_task(1)], forward=lambda x: 30 * model(x))
    assert second.prior == first.prior
    assert second.share > 0.15


def test_an_explicit_prior_turns_it_off() -> None:
    torch.manual_seed(3)
    model, x = mlp()
    shares = []
    for prior in (1e-1, 1e-4, 1e-7):
        report = BLIP(model, prior=prior, budget=0.1).consolidate([x], labels="exact")
        assert report.prior == prior
        shares.append(report.share)
    assert shares == sorted(shares)
    assert shares[0] < 0.05 < 0.15 < shares[2]


def constant_fisher(scale: float = 1.0) -> tuple[nn.Module, Tensor]:
    """Every entry has the same Fisher: shares come in steps of one bit."""
    model = nn.Linear(8, 2, bias=False)
    nn.init.zeros_(model.weight)
    return model, torch.full((5, 8), scale)


@pytest.mark.parametrize("scale", [1.0, 1.1, 0.3, 7e-3])
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 9])
def test_ties_are_met_where_they_can_be(scale: float, steps: int) -> None:
    model, x = constant_fisher(scale)
    report = BLIP(model, budget=steps / 20).consolidate([x], labels="exact")
    assert report.share == pytest.approx(steps / 20)
    assert report.histogram[steps] == 16


@pytest.mark.parametrize(("budget", "named"), [(0.12, "10.0%"), (0.04, "0.0%")])
def test_a_budget_out_of_reach_is_told_with_the_share(budget: float, named: str) -> None:
    model, x = constant_fisher()
    blip = BLIP(model, budget=budget)
    with pytest.warns(
        UserWarning, match=f"budget of {budget:.1%} of the bits cannot be met and {named} are frozen"
    ) as told:
        report = blip.consolidate([x], labels="exact")
    assert f"{report.share:.1%}" == named
    assert told[0].filename == __file__  # where consolidate was called


def test_eq8_cannot_freeze_less_than_a_bit_of_each() -> None:
    torch.manual_seed(4)
    model, x = mlp()
    blip = BLIP(model, bits=8, budget=0.05, rules=Rules.text())
    with pytest.warns(UserWarning, match="budget of 5.0% of the bits cannot be met and 12.5% are frozen"):
        report = blip.consolidate([x], labels="exact")
    assert report.share == pytest.approx(1 / 8)


def test_with_no_gradient_at_all_there_is_no_prior_to_find() -> None:
    """A saturated model with sampled labels: log p is 0 and flat."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([500.0, -500.0]))
    with pytest.raises(ValueError, match=r"must not all be 0.*labels='exact', or give a prior"):
        BLIP(model, budget=0.1).consolidate([torch.randn(5, 2)])
    report = BLIP(model, prior=1e-3).consolidate([torch.randn(5, 2)])
    assert (report.share, report.frozen_now) == (0.0, 0)
