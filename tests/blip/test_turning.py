"""Carrying the Fisher over to other coordinates, against explicit Kronecker matrices."""

import pytest
import torch
from torch import Tensor

from bitfreeze.blip.turning import Task, Turning, carry_over

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
        close(rest, entries)


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
    close(rest, rest_before)


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
