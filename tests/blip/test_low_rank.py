"""Low-rank adapters along directions, against the merged weight by brute force."""

import copy

import pytest
import torch
from torch import Tensor, nn

from bitfreeze import BLIP, Rules, protect
from bitfreeze.blip.adapters import HeldAdapters
from bitfreeze.blip.held_tensor import radius_of
from bitfreeze.blip.low_rank import LowRankLayer, Term, without_bias
from bitfreeze.blip.protection import table_of
from bitfreeze.blip.turning import Turning

OUTPUTS, INPUTS, PRIOR = 10, 12, 1e-4


def orthonormal(n: int, k: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0][:, :k].contiguous()


def layer(k: int | None, seed: int = 0) -> LowRankLayer:
    """Directions with a Fisher over many powers of ten; all of them, or the k strongest of each side."""
    draw = torch.Generator().manual_seed(seed)
    j, k = (k or INPUTS), (k or OUTPUTS)
    fisher = torch.randn(1, k, j, generator=draw, dtype=torch.float64).mul(3).exp()
    ones = torch.ones(1, j, dtype=torch.float64), torch.ones(1, k, dtype=torch.float64)
    u, v = orthonormal(INPUTS, j, draw)[None], orthonormal(OUTPUTS, k, draw)[None]
    rows, columns = (torch.rand(n, generator=draw, dtype=torch.float64) for n in (OUTPUTS, INPUTS))
    by_output = torch.rand(1, OUTPUTS, j, generator=draw, dtype=torch.float64) if k < OUTPUTS else None
    turning = Turning(u, v, *ones, fisher, by_output)
    return LowRankLayer(turning, rows, columns, PRIOR)


def terms(rank: int, seed: int = 1, scale: float = 2.0, size: float = 0.3) -> Term:
    draw = torch.Generator().manual_seed(seed)
    down = size * torch.randn(rank, INPUTS, generator=draw, dtype=torch.float64)
    return Term(down, size * torch.randn(OUTPUTS, rank, generator=draw, dtype=torch.float64), scale)


def dense(*all_terms: Term) -> Tensor:
    return sum(term.scale * term.up @ term.down for term in all_terms)


def turned_by_hand(held: LowRankLayer, change: Tensor) -> Tensor:
    return held.turning.outputs[0].T @ change @ held.turning.inputs[0]


@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.parametrize("rank", [1, 3, 10])
def test_coordinates_are_those_of_the_merged_weight(k: int | None, rank: int) -> None:
    """They span the whole change, and along the directions they are those of the dense matrix."""
    held, term = layer(k), terms(rank)
    found = held.coordinates([term])
    change = found.outputs @ found.change @ found.inputs.T
    torch.testing.assert_close(change, dense(term))
    for side in (found.outputs, found.inputs):
        torch.testing.assert_close(side.T @ side, torch.eye(side.shape[1], dtype=torch.float64))
    expected = turned_by_hand(held, dense(term))
    torch.testing.assert_close(found.change[: expected.shape[0], : expected.shape[1]], expected)


@pytest.mark.parametrize("k", [None, 4])
def test_after_many_random_steps_the_merged_weight_lies_in_its_intervals(k: int | None) -> None:
    held, term = layer(k), terms(3)
    draw = torch.Generator().manual_seed(5)
    radius = radius_of(held.turning.fisher[0], PRIOR)
    for step in range(60):
        term.down.add_(0.05 * torch.randn(term.down.shape, generator=draw, dtype=torch.float64))
        term.up.add_(0.05 * torch.randn(term.up.shape, generator=draw, dtype=torch.float64))
        if step > 30:  # far outside
            term.up.mul_(3)
        cost = held.hold_([term], width=1.0)
        turned = turned_by_hand(held, dense(term))
        assert (turned.abs() <= radius * (1 + 1e-6)).all()
        found = held.coordinates([term])
        assert (found.change.abs() <= radius_of(found.fisher, PRIOR) * (1 + 1e-4)).all()
        assert cost == pytest.approx(held.cost([term]), rel=1e-3)
        before = dense(term).clone()
        held.hold_([term], width=1.0)
        torch.testing.assert_close(dense(term), before, rtol=1e-3, atol=1e-9)  # a second time changes nothing
    assert dense(term).abs().max() > 0


def test_at_full_rank_it_is_the_clamp_of_the_dense_weight() -> None:
    held, term = layer(None), terms(OUTPUTS)
    radius = radius_of(held.turning.fisher[0], PRIOR)
    turned = turned_by_hand(held, dense(term))
    clamped = turned.clamp(-radius, radius)
    assert (clamped != turned).any()
    held.hold_([term], width=1.0)
    torch.testing.assert_close(turned_by_hand(held, dense(term)), clamped, rtol=1e-5, atol=1e-8)


def test_a_change_inside_its_intervals_stays_to_the_bit() -> None:
    held, term = layer(4), terms(3, size=1e-3)
    held.prior = 1e3
    before = term.up.clone(), term.down.clone()
    held.hold_([term], width=1.0)
    assert torch.equal(term.up, before[0])
    assert torch.equal(term.down, before[1])


def test_free_directions_keep_all_of_a_change() -> None:
    """The inputs use half of the directions. What an adapter does along the others is left as it is."""
    held = layer(None)
    held.turning.fisher[0][:, 6:] = 0
    term = terms(4)
    before = turned_by_hand(held, dense(term))
    held.hold_([term], width=1.0)
    after = turned_by_hand(held, dense(term))
    torch.testing.assert_close(after[:, 6:], before[:, 6:])
    assert after[:, :6].norm() < 0.5 * before[:, :6].norm()


def test_what_the_output_directions_leave_out_costs_what_it_does_by_output() -> None:
    """Of a change along an input direction alone, by hand: nothing of it lies in the rest."""
    held = layer(4)
    u, v = held.turning.inputs[0], held.turning.outputs[0]
    assert held.turning.by_output is not None
    draw = torch.Generator().manual_seed(2)
    for j in range(4):
        up = torch.randn(OUTPUTS, 1, generator=draw, dtype=torch.float64)
        inside, left = v.T @ up, up - v @ (v.T @ up)
        along = (held.turning.fisher[0, :, j] @ inside.square()).item()
        found = held.cost([Term(u[:, j : j + 1].T.clone(), up, 1.0)])
        size = left.square().sum()
        by_output = (held.turning.by_output[0, :, j] @ (left / size.sqrt()).square() * size).item()
        assert found == pytest.approx(0.5 * (along + by_output))


def test_directions_of_a_weight_without_its_bias() -> None:
    """They are orthonormal and span what the directions of both see of a weight, and one direction has its Fisher."""
    draw = torch.Generator().manual_seed(0)
    for j in (3, 7):
        joined = orthonormal(7, j, draw)[None]
        ones = torch.ones(1, j, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
        fisher = torch.rand(1, 2, j, generator=draw, dtype=torch.float64)
        found = without_bias(Turning(joined, orthonormal(5, 2, draw)[None], *ones, fisher))
        u = found.inputs[0]
        torch.testing.assert_close(u.T @ u, torch.eye(u.shape[1], dtype=torch.float64))
        assert u.shape == (6, min(j, 6))
        torch.testing.assert_close(u @ (u.T @ joined[0, :-1]), joined[0, :-1])
        for m in range(u.shape[1]):  # the cost of a step along one of them, by hand
            along = joined[0].T @ nn.functional.pad(u[:, m], (0, 1))
            torch.testing.assert_close(found.fisher[0, :, m], fisher[0] @ along.square())


def test_it_loses_less_than_scaling_does() -> None:
    """Against the obvious way into the intervals, one factor for the whole product."""
    kept = []
    for seed in range(5):
        held, term = layer(None, seed), terms(3, seed + 10)
        radius = radius_of(held.turning.fisher[0], PRIOR)
        turned = turned_by_hand(held, dense(term))
        clamped, scaled = turned.clamp(-radius, radius), turned * (radius / turned.abs()).min()
        held.hold_([term], width=1.0)
        found = turned_by_hand(held, dense(term))
        kept.append((found.norm() / scaled.norm()).item())
        assert (found - clamped).norm() < (scaled - clamped).norm()
    assert min(kept) > 1.2


def test_a_term_that_does_not_learn_stays_and_counts() -> None:
    held, first = layer(4), terms(2, seed=2)
    held.hold_([first], width=1.0)
    settled = Term(first.down, first.up, first.scale, learns=False)
    before = settled.up.clone(), settled.down.clone()
    second = terms(3, seed=4)
    held.hold_([settled, second], width=1.0)
    assert torch.equal(settled.up, before[0])
    assert torch.equal(settled.down, before[1])
    radius = radius_of(held.turning.fisher[0], PRIOR)
    assert (turned_by_hand(held, dense(settled, second)).abs() <= radius * (1 + 1e-6)).all()
    assert dense(second).abs().max() > 0


def test_infinite_factors_are_refused() -> None:
    term = terms(2)
    term.up[0, 0] = float("nan")
    with pytest.raises(ValueError, match="adapters must be finite, got NaN or infinite entries; restore the last good"):
        layer(4).hold_([term], width=1.0)


# all layers of a model


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2 * x @ self.down.T @ self.up.T

    def terms(self) -> list[Term]:
        return [Term(self.down.detach(), self.up.detach(), 2.0)]


def data(seed: int, rows: int = 256) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=draw) @ torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


def pretrained() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4, bias=False))
    train(net, lambda x: x[:, 0] > 0, 100)
    return net


def train(net: nn.Module, target: object, steps: int) -> None:
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=0.01)
    for step in range(steps):
        x = data(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), target(x).long()).backward()  # type: ignore[operator]
        optimizer.step()


def adapted(base: nn.Sequential, rank: int = 2) -> nn.Sequential:
    net = copy.deepcopy(base)
    return nn.Sequential(Adapted(net[0], rank), nn.Tanh(), Adapted(net[2], rank))


def lost(net: nn.Module, base: nn.Module) -> float:
    with torch.no_grad():
        new, old = (each(data(999, 2000)).log_softmax(-1) for each in (net, base))
    return float((old.exp() * (old - new)).sum(-1).mean())


@pytest.mark.parametrize("strongest", [None, 3])
def test_adapters_are_held_after_each_step_and_cost_the_base_little(strongest: int | None) -> None:
    base = pretrained()
    table = table_of(protect(base, [data(5)], rules=Rules.directions(strongest=strongest)).state_dict())
    plain, net = adapted(base), adapted(base)
    held = HeldAdapters(table, {"0.weight": net[0].terms, "2.weight": net[2].terms}, tolerance=0.02)
    handle = held.attach()
    for each in (plain, net):
        train(each, lambda x: x[:, 1] > 0, 80)
    assert handle.steps == 80
    assert held.drift() <= 0.02 * 1.02
    assert lost(net, base) < lost(plain, base) / 5
    new = [nn.functional.cross_entropy(each(data(7)), (data(7)[:, 1] > 0).long()).item() for each in (base, net)]
    assert new[1] < new[0]  # and something was learned
    before = [p.clone() for p in net.parameters()]
    held.clamp_()
    for one, other in zip(net.parameters(), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def drifts(seed: int, bias: bool, halved: bool) -> tuple[float, float]:
    """The estimate of held adapters, and that of a BLIP whose weights have moved by the product; all directions."""
    torch.manual_seed(seed)
    base = nn.Sequential(nn.Linear(8, 32, bias=bias), nn.Tanh(), nn.Linear(32, 4, bias=False))
    train(base, lambda x: x[:, 0] > 0, 100)
    blip = BLIP(base, rules=Rules.directions(strongest=None), tolerance=0.02)
    blip.consolidate([data(5)])
    net, state = adapted(base), blip.state_dict()
    table = table_of(state) if halved else {**table_of(state), "directions": state["directions"]}
    held = HeldAdapters(table, {"0.weight": net[0].terms, "2.weight": net[2].terms}, 0.02)
    held.attach()
    train(net, lambda x: x[:, 1] > 0, 20)
    with torch.no_grad():
        for plain, layer_ in ((base[0], net[0]), (base[2], net[2])):
            plain.weight += 2 * layer_.up @ layer_.down
    drift = blip.drift()
    assert drift is not None
    assert drift > 1e-4
    return held.drift(), drift


@pytest.mark.parametrize("seed", range(3))
def test_the_drift_is_exactly_that_of_the_merged_weights(seed: int) -> None:
    found, expected = drifts(seed, bias=False, halved=False)
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_bias_and_half_precision_change_the_drift_little(seed: int) -> None:
    """Coordinates without the layer's bias leave out its share of the directions; the table is in bfloat16."""
    found, expected = drifts(seed, bias=True, halved=False)
    assert found == pytest.approx(expected, rel=1e-2)
    found, expected = drifts(seed, bias=True, halved=True)
    assert found == pytest.approx(expected, rel=5e-2)


def test_a_step_of_something_else_is_left_alone() -> None:
    base = pretrained()
    table = table_of(protect(base, [data(5)]).state_dict())
    net = adapted(base)
    held = HeldAdapters(table, {"0.weight": net[0].terms}, tolerance=0.02)
    handle = held.attach()
    other = nn.Linear(3, 3)
    other(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    assert handle.steps == 0
    del held
    assert not handle.active
