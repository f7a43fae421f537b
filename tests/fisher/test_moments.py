"""Moments that keep some rows only, and the iteration for strongest directions."""

import pytest
import torch
from torch import nn

from bitfreeze.fisher import estimate
from bitfreeze.fisher.moments import POSITIONS, SAMPLES_IN_FULL, SampledMoment, SquareMoment, chosen_positions
from bitfreeze.fisher.statistics import SecondMoments
from support.per_sample import assert_equal, orthonormal, readout

CPU = torch.device("cpu")


def added(moment, rows):
    """Rows [n, width], added as samples of one position and one group."""
    moment.add(rows[:, None, None], torch.ones(len(rows), 1, 1, dtype=torch.bool), range(len(rows)), 0)
    return moment


def decaying(n, width, rate):
    """Rows whose moment has known directions and strengths that fall by ``rate`` each."""
    left, right = orthonormal(1, n, min(n, width))[0], orthonormal(1, width, min(n, width))[0]
    strengths = rate ** torch.arange(min(n, width), dtype=torch.float64)
    return (left * strengths.sqrt()) @ right.mT, right, strengths


def test_wide_layer_never_gets_a_square_matrix():
    layer = nn.Linear(300, 40)
    model, x, y = readout(layer, (9, 300), samples=30)
    moments = SecondMoments(layer, widest=100, rows=50)
    estimate(model, [(x[:11], y[:11]), (x[11:], y[11:])], labels="true", statistics={layer: [moments]})
    assert isinstance(moments.inputs, SampledMoment)
    assert moments.inputs.rows().shape == (1, 50, 301)
    assert moments.inputs.seen == 30 * 9
    assert moments.nbytes == 8 * (50 * 301 + 50 + 40 * 40)
    u, strengths = moments.strongest_inputs(1000)
    assert u.shape == (1, 301, 50)  # as many as there are rows
    assert_equal(u.mT @ u, torch.eye(50).double()[None])
    assert (strengths.diff() <= 0).all()


def test_all_rows_kept_give_the_moment_exactly():
    rows = torch.randn(20, 30, dtype=torch.float64)
    thin = added(SampledMoment(1, 30, torch.float64, CPU, most=20), rows)
    assert_equal(thin.rows().mT @ thin.rows(), (rows.mT @ rows)[None])
    square = added(SquareMoment(1, 30, torch.float64, CPU), rows)
    assert_equal(thin.directions(5)[1], square.directions(5)[1])
    assert_equal((thin.directions(5)[0].mT @ square.directions(5)[0]).abs(), torch.eye(5).double()[None], 1e-6)


def test_kept_rows_estimate_the_moment_without_bias():
    """Every row is kept equally often, so the mean over many ways to number the samples is the moment."""
    rows = torch.randn(12, 3, dtype=torch.float64)
    total = torch.zeros(1, 3, 3, dtype=torch.float64)
    counts = torch.zeros(12)
    for start in range(3000):
        thin = SampledMoment(1, 3, torch.float64, CPU, most=4)
        thin.add(rows[:, None, None], torch.ones(12, 1, 1, dtype=torch.bool), range(12 * start, 12 * start + 12), 0)
        total += thin.rows().mT @ thin.rows() / 3000
        counts += torch.isin(rows[:, 0], thin.kept[:, 0, 0])
    assert_equal(total, (rows.mT @ rows)[None], 0.05)
    assert (counts / 1000 - 1).abs().max() < 0.1  # 4 of 12: 1000 +- 26


def test_positions_and_scores_have_their_own_chance():
    kept = []
    for score in range(2):
        thin = SampledMoment(1, 1, torch.float64, CPU, most=5)
        rows = torch.arange(100.0, dtype=torch.float64).reshape(10, 1, 10, 1)
        thin.add(rows, torch.ones(10, 1, 10, dtype=torch.bool), range(10), score)
        kept.append(thin.kept.flatten().tolist())
    assert kept[0] != kept[1]
    assert all(len({row // 10 for row in rows}) > 2 and len({row % 10 for row in rows}) > 2 for rows in kept)


@pytest.mark.parametrize("kind", ["square", "rows"])
def test_iteration_finds_the_directions_of_the_full_decomposition(kind):
    rows, right, strengths = decaying(400, 500, 0.8)
    if kind == "square":
        moment = added(SquareMoment(1, 500, torch.float64, CPU), rows)
    else:
        moment = added(SampledMoment(1, 500, torch.float64, CPU, most=400), rows)
    u, values = moment.directions(10)
    assert_equal(values, strengths[None, :10], 1e-6)
    assert_equal((u[0].mT @ right[:, :10]).abs(), torch.eye(10).double(), 1e-3)
    assert_equal(u.mT @ u, torch.eye(10).double()[None])


def test_iteration_holds_as_much_strength_as_the_best_directions_where_these_are_alike():
    """With a flat spectrum single directions are arbitrary; the strength that they hold is not."""
    rows = torch.randn(3000, 400, dtype=torch.float64) * torch.linspace(1, 0.7, 400)
    moment = added(SquareMoment(1, 400, torch.float64, CPU), rows)
    u, _ = moment.directions(20)
    best = torch.linalg.eigvalsh(moment.total)[0, -20:].sum()
    assert torch.trace((u.mT @ moment.total @ u)[0]) >= 0.95 * best


def test_groups_have_directions_of_their_own():
    rows = torch.randn(50, 2, 1, 300, dtype=torch.float64)
    moment = SquareMoment(2, 300, torch.float64, CPU)
    moment.add(rows, torch.ones(50, 2, 1, dtype=torch.bool), range(50), 0)
    u, values = moment.directions(300)
    assert_equal(u * values[:, None] @ u.mT, moment.total)
    assert_equal(moment.total, torch.einsum("ngli,nglj->gij", rows, rows))


def test_moment_without_gradients_has_orthonormal_directions_and_no_strength():
    u, values = SquareMoment(1, 300, torch.float32, CPU).directions(8)
    torch.testing.assert_close(u.mT @ u, torch.eye(8)[None])
    assert not values.any()


def test_iteration_finds_the_same_from_the_directions_of_earlier_tasks():
    rows, _, _ = decaying(400, 500, 0.8)
    other = decaying(400, 500, 0.9)[0]
    earlier = added(SquareMoment(1, 500, torch.float64, CPU), other).directions(10)
    moment = added(SquareMoment(1, 500, torch.float64, CPU), rows)
    u, values = moment.directions(10, earlier)
    vectors, strengths = earlier
    true_values, true_vectors = torch.linalg.eigh(moment.total + (vectors * strengths[:, None]) @ vectors.mT)
    assert_equal(values, true_values.flip(-1)[:, :10], 1e-3)
    inside = (u.mT @ true_vectors.flip(-1)[..., :10]).square().sum()
    assert inside > 10 - 0.05
    assert_equal(u.mT @ u, torch.eye(10).double()[None])


# some positions of each sample


def test_chosen_positions_are_alive_and_count_for_all_that_are():
    alive = torch.rand(40, 2, 100) < torch.linspace(0, 0.9, 40).view(-1, 1, 1)
    places, weights = chosen_positions(alive, range(40))
    assert places.shape == (40, POSITIONS)
    anywhere = alive.any(1)
    for n in range(40):
        assert len(set(places[n].tolist())) == POSITIONS
        wanted = min(POSITIONS, int(anywhere[n].sum()))
        assert int(anywhere[n, places[n]].sum()) == wanted
        heaviest = weights[n].amax(0)
        torch.testing.assert_close(heaviest.sum(), anywhere[n].sum().to(heaviest))
        assert torch.equal(weights[n] > 0, alive[n][:, places[n]])


def test_some_positions_estimate_the_moment_of_all_without_bias():
    layer = nn.Conv1d(2, 3, 2)
    model, x, y = readout(layer, (2, 80), samples=SAMPLES_IN_FULL + 1)
    exact = SecondMoments(layer)
    first = [(x[:SAMPLES_IN_FULL], y[:SAMPLES_IN_FULL])]
    estimate(model, first, labels="true", statistics={layer: [exact]})
    patches = x.unfold(2, 2, 1).movedim(1, 2).flatten(2)
    rows = torch.cat([patches, torch.ones_like(patches[..., :1])], -1)
    assert_equal(exact.inputs.total[0], torch.einsum("nli,nlj->ij", rows[:-1], rows[:-1]))  # all positions of the first
    last = x[-1:].expand(3000, -1, -1), y[-1:].expand(3000)  # one sample under many numbers
    some = SecondMoments(layer)
    estimate(model, [*first, last], labels="true", statistics={layer: [some]})
    mean = (some.inputs.total - exact.inputs.total)[0] / 3000
    assert_equal(mean, rows[-1].mT @ rows[-1], 0.02)


def test_some_positions_do_not_depend_on_batches():
    layer = nn.Conv2d(2, 3, 2, groups=1)
    model, x, y = readout(layer, (2, 8, 8), samples=SAMPLES_IN_FULL + 20)
    found = []
    for size in (100, 7):
        moments = SecondMoments(layer)
        data = list(zip(x.split(size), y.split(size), strict=True))
        estimate(model, data, labels="true", statistics={layer: [moments]})
        found.append(moments)
    assert_equal(found[0].inputs.total, found[1].inputs.total)
    assert_equal(found[0].outputs.total, found[1].outputs.total)
