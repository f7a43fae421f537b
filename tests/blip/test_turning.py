"""Carrying the Fisher over to other coordinates, against explicit Kronecker matrices."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bitfreeze.blip.turning import Task, Turning, carry_over, damped

SIZES = [(1, 2, 3), (2, 3, 2), (3, 1, 4)]  # groups, outputs, inputs


def basis(draw: torch.Generator, groups: int, width: int, count: int) -> Tensor:
    """Random orthonormal columns [g, width, count]."""
    return torch.linalg.qr(torch.randn(groups, width, width, generator=draw, dtype=torch.float64)).Q[..., :count]


def random_turning(draw: torch.Generator, sizes: tuple[int, int, int], less: tuple[int, int] = (0, 0)) -> Turning:
    groups, outputs, inputs = sizes
    k, j = max(1, outputs - less[0]), max(1, inputs - less[1])
    energies = torch.rand(groups, j, generator=draw).double(), torch.rand(groups, k, generator=draw).double()
    fisher = torch.rand(groups, k, j, generator=draw, dtype=torch.float64)
    return Turning(basis(draw, groups, inputs, j), basis(draw, groups, outputs, k), *energies, fisher)


def task_along(turning: Turning, rest: bool) -> Task:
    sizes = turning.outputs.shape[0], turning.outputs.shape[1], turning.inputs.shape[1]
    zeros = torch.zeros(sizes, dtype=torch.float64) if rest else None
    return Task(turning.inputs, turning.outputs, torch.zeros_like(turning.fisher), zeros)


def kronecker(turning: Turning, group: int) -> Tensor:
    """Columns v_k x u_j: the matrix that takes vec(turned) to vec(W), rows first."""
    v, u = turning.outputs[group], turning.inputs[group]
    return torch.einsum("ok,ij->oikj", v, u).reshape(len(v) * len(u), -1)


def whole_matrix(turning: Turning, group: int) -> Tensor:
    """The Fisher of all entries of W, with its diagonal in turned coordinates: K diag(F') K^T."""
    turn = kronecker(turning, group)
    return turn @ torch.diag(turning.fisher[group].flatten()) @ turn.T


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("less", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_the_fisher_is_carried_over_as_the_diagonal_of_the_turned_diagonal(sizes, less, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    old, new = random_turning(draw, sizes, less), random_turning(draw, sizes, less)
    carried = old.carried(new.inputs, new.outputs)
    for group in range(sizes[0]):
        turn = kronecker(new, group)
        expected = (turn.T @ whole_matrix(old, group) @ turn).diagonal().reshape(carried[group].shape)
        close(carried[group], expected)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("less", [(0, 0), (1, 1)])
def test_spread_is_the_diagonal_of_the_matrix_turned_back(sizes, less) -> None:
    turning = random_turning(torch.Generator().manual_seed(4), sizes, less)
    for group, spread in enumerate(turning.spread()):
        close(spread, whole_matrix(turning, group).diagonal().reshape(spread.shape))


@pytest.mark.parametrize("sizes", SIZES)
def test_turning_there_and_back(sizes) -> None:
    draw = torch.Generator().manual_seed(5)
    turning = random_turning(draw, sizes)
    change = torch.randn(sizes, generator=draw, dtype=torch.float64)
    close(turning.turn_back(turning.turn(change)), change)
    for group in range(sizes[0]):
        close(turning.turn(change)[group].flatten(), kronecker(turning, group).T @ change[group].flatten())


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_between_complete_coordinates(sizes, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    turning = random_turning(draw, sizes)
    for _ in range(4):
        new = random_turning(draw, sizes)
        carried, rest = carry_over(turning, None, task_along(new, rest=False))
        assert rest is None
        close(carried.sum((1, 2)), turning.fisher.sum((1, 2)))
        turning = Turning(new.inputs, new.outputs, new.input_energy, new.output_energy, carried)


@pytest.mark.parametrize("sizes", [(1, 4, 5), (2, 3, 4)])
@pytest.mark.parametrize("less", [(1, 1), (2, 3), (0, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_what_leaves_the_new_directions_goes_to_the_rest(sizes, less, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    old, new = random_turning(draw, sizes, less), random_turning(draw, sizes, less)
    carried, rest = carry_over(old, None, task_along(new, rest=True))
    assert rest is not None
    assert (carried >= 0).all()
    assert (rest >= 0).all()
    before, after = old.fisher.sum((1, 2)), carried.sum((1, 2))
    assert (after < before).all()
    assert (rest.sum((1, 2)) >= before - after - 1e-12).all()  # nothing is lost; entries that fell below 0 add to it
    for group in range(sizes[0]):
        turn = kronecker(new, group)
        inside = (turn.T @ whole_matrix(old, group) @ turn).diagonal()
        left = whole_matrix(old, group).diagonal() - (turn @ torch.diag(inside) @ turn.T).diagonal()
        close(rest[group], left.clamp(min=0).reshape(rest[group].shape))


@pytest.mark.parametrize("less", [(0, 0), (1, 2)])
def test_unchanged_coordinates_carry_everything_over_as_it_is(less) -> None:
    draw, sizes = torch.Generator().manual_seed(6), (2, 3, 4)
    turning = random_turning(draw, sizes, less)
    rest_before = torch.rand(sizes, generator=draw, dtype=torch.float64) if less != (0, 0) else None
    carried, rest = turning.fisher, rest_before
    for _ in range(3):
        same = Turning(turning.inputs, turning.outputs, turning.input_energy, turning.output_energy, carried)
        carried, rest = carry_over(same, rest, task_along(same, rest=rest is not None))
        close(carried, turning.fisher)
        if rest_before is not None:
            close(rest, rest_before)


@pytest.mark.parametrize("less", [(0, 0), (1, 2)])
def test_entries_held_one_by_one_so_far_are_turned_and_kept(less) -> None:
    """The first directions of a layer that was held entry by entry."""
    draw, sizes = torch.Generator().manual_seed(7), (2, 3, 4)
    new = random_turning(draw, sizes, less)
    entries = torch.rand(sizes, generator=draw, dtype=torch.float64)
    carried, rest = carry_over(None, entries, task_along(new, rest=less != (0, 0)))
    for group in range(sizes[0]):
        turn = kronecker(new, group)
        expected = (turn.T @ torch.diag(entries[group].flatten()) @ turn).diagonal()
        close(carried[group].flatten(), expected)
    if rest is None:
        close(carried.sum((1, 2)), entries.sum((1, 2)))
    else:
        close(rest, (entries - replace(new, fisher=carried).spread()).clamp(min=0))


def test_a_direction_that_is_new_takes_its_share_of_the_rest() -> None:
    """Coordinates inside the earlier ones take nothing of the rest, those at right angles to them all that is there."""
    eye = torch.eye(3, dtype=torch.float64)[None]
    one = torch.ones(1, 1, dtype=torch.float64)
    old = Turning(eye[..., :1], eye, one, torch.ones(1, 3).double(), torch.full((1, 3, 1), 5.0).double())
    rest_before = torch.arange(9.0, dtype=torch.float64).reshape(1, 3, 3)
    task = Task(eye[..., :2], eye, torch.zeros(1, 3, 2).double(), torch.zeros(1, 3, 3).double())
    carried, rest = carry_over(old, rest_before, task)
    close(carried[..., 0], old.fisher[..., 0])
    close(carried[..., 1], rest_before[..., 1])
    assert rest is not None
    close(rest, torch.cat([rest_before[..., :1], torch.zeros(1, 3, 1).double(), rest_before[..., 2:]], -1))


@pytest.mark.parametrize("less", [(1, 1), (2, 2), (0, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_coordinates_that_turn_to_and_fro_without_new_data_add_nothing(less, seed: int) -> None:
    """The Fisher that goes from the rest to new directions is not left in the rest too."""
    draw, sizes = torch.Generator().manual_seed(seed), (2, 4, 5)
    turning, other = (random_turning(draw, sizes, less) for _ in range(2))
    start = turning.fisher.sum((1, 2))
    rest: Tensor | None = torch.zeros(sizes, dtype=torch.float64)
    for _ in range(10):
        carried, rest = carry_over(turning, rest, task_along(other, rest=True))
        turning, other = replace(other, fisher=carried), turning
        assert rest is not None
        total = carried.sum((1, 2)) + rest.sum((1, 2))
        assert (total >= start - 1e-12).all()
        assert (total <= 1.2 * start).all()  # entries that fell below 0 add a little


def test_complete_means_that_both_sides_span_everything() -> None:
    draw = torch.Generator().manual_seed(8)
    assert random_turning(draw, (2, 3, 4)).is_complete
    assert not random_turning(draw, (2, 3, 4), (1, 0)).is_complete
    assert not random_turning(draw, (2, 3, 4), (0, 1)).is_complete


def test_nothing_before_the_first_task() -> None:
    new = random_turning(torch.Generator().manual_seed(9), (1, 2, 3), (0, 1))
    carried, rest = carry_over(None, None, task_along(new, rest=True))
    assert not carried.any()
    assert rest is not None
    assert not rest.any()


# damping


def partial_trace(matrix: Tensor, outputs: int) -> Tensor:
    """Sum over the outputs of the blocks [i, i] on the diagonal of a matrix over entries [o, i]."""
    blocks = matrix.reshape(outputs, len(matrix) // outputs, outputs, -1)
    return torch.einsum("oioj->ij", blocks)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_damping_adds_a_share_of_the_mean_over_outputs_to_each_of_them(sizes, seed: int) -> None:
    """Against the matrix of all entries, plus damping * (identity over outputs) x (its trace over outputs / o)."""
    draw = torch.Generator().manual_seed(seed)
    turning = random_turning(draw, sizes)
    found = damped(Task(turning.inputs, turning.outputs, turning.fisher, None), 0.3)
    assert found.rest is None
    for group in range(sizes[0]):
        turn, whole = kronecker(turning, group), whole_matrix(turning, group)
        mean = partial_trace(whole, sizes[1]) / sizes[1]
        whole = whole + 0.3 * torch.kron(torch.eye(sizes[1], dtype=torch.float64), mean)
        close(found.turned[group].flatten(), (turn.T @ whole @ turn).diagonal())
    close(found.turned.sum((1, 2)), 1.3 * turning.fisher.sum((1, 2)))


@pytest.mark.parametrize("sizes", [(1, 3, 4), (2, 4, 2)])
def test_damping_is_the_same_in_any_basis_of_the_outputs(sizes) -> None:
    draw = torch.Generator().manual_seed(3)
    groups, outputs, inputs = sizes
    u = basis(draw, groups, inputs, inputs)
    root = torch.randn(groups, outputs * inputs, outputs * inputs, generator=draw, dtype=torch.float64)
    whole, added = root @ root.mT, []
    for _ in range(3):
        v = basis(draw, groups, outputs, outputs)
        energies = torch.ones(groups, inputs).double(), torch.ones(groups, outputs).double()
        turning = Turning(u, v, *energies, torch.zeros(sizes, dtype=torch.float64))
        turns = [kronecker(turning, group) for group in range(groups)]
        fisher = torch.stack([(t.T @ m @ t).diagonal() for t, m in zip(turns, whole, strict=True)]).reshape(sizes)
        added.append(damped(Task(u, v, fisher, None), 0.3).turned - fisher)
    for group in range(groups):
        mean = partial_trace(whole[group], outputs) / outputs
        close(added[0][group], 0.3 * (u[group].T @ mean @ u[group]).diagonal().expand(outputs, inputs))
    close(added[1], added[0])
    close(added[2], added[0])


@pytest.mark.parametrize("sizes", [(1, 4, 5), (2, 3, 4)])
@pytest.mark.parametrize("less", [(1, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_damping_of_few_directions_and_their_rest(sizes, less, seed: int) -> None:
    """Directions get what the mean over outputs has along them, the rest what lies outside the output directions."""
    draw = torch.Generator().manual_seed(seed)
    turning = random_turning(draw, sizes, less)
    rest = torch.rand(sizes, generator=draw, dtype=torch.float64)
    found = damped(Task(turning.inputs, turning.outputs, turning.fisher, rest), 0.3)
    assert found.rest is not None
    eye = torch.eye(sizes[1], dtype=torch.float64)
    for group in range(sizes[0]):
        turn, v = kronecker(turning, group), turning.outputs[group]
        along = partial_trace(whole_matrix(turning, group), sizes[1]) / sizes[1]
        of_rest = partial_trace(torch.diag(rest[group].flatten()), sizes[1]) / sizes[1]
        added = 0.3 * torch.kron(eye, along + of_rest)
        close((found.turned - turning.fisher)[group].flatten(), (turn.T @ added @ turn).diagonal())
        left = 0.3 * (torch.kron(eye - v @ v.T, along) + torch.kron(eye, of_rest))
        close((found.rest - rest)[group].flatten(), left.diagonal())


def test_no_damping_changes_nothing() -> None:
    turning = random_turning(torch.Generator().manual_seed(1), (2, 3, 4), (1, 1))
    rest = torch.rand(2, 3, 4, dtype=torch.float64)
    found = damped(Task(turning.inputs, turning.outputs, turning.fisher, rest), 0.0)
    assert torch.equal(found.turned, turning.fisher)
    assert found.rest is not None
    assert torch.equal(found.rest, rest)
