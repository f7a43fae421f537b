"""Carrying the Fisher over to other coordinates, against explicit Kronecker matrices."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bitfreeze.blip.turning import Parts, Task, Turning, carry_over, damped

SIZES = [(1, 2, 3), (2, 3, 2), (3, 1, 4)]  # groups, outputs, inputs


def basis(draw: torch.Generator, groups: int, width: int, count: int) -> Tensor:
    """Random orthonormal columns [g, width, count]."""
    return torch.linalg.qr(torch.randn(groups, width, width, generator=draw, dtype=torch.float64)).Q[..., :count]


def random_turning(draw: torch.Generator, sizes: tuple[int, int, int], less: tuple[int, int] = (0, 0)) -> Turning:
    groups, outputs, inputs = sizes
    k, j = max(1, outputs - less[0]), max(1, inputs - less[1])
    energies = torch.rand(groups, j, generator=draw).double(), torch.rand(groups, k, generator=draw).double()
    fisher = torch.rand(groups, k, j, generator=draw, dtype=torch.float64)
    by_output = torch.rand(groups, outputs, j, generator=draw, dtype=torch.float64) if k < outputs else None
    return Turning(basis(draw, groups, inputs, j), basis(draw, groups, outputs, k), *energies, fisher, by_output)


def random_rest(draw: torch.Generator, turning: Turning) -> Tensor | None:
    if turning.all_inputs:
        return None
    groups, inputs, _ = turning.inputs.shape
    return torch.rand(groups, turning.outputs.shape[1], inputs, generator=draw, dtype=torch.float64)


def task_along(turning: Turning) -> Task:
    """New coordinates in which nothing was measured."""
    groups, inputs, _ = turning.inputs.shape
    rest = torch.zeros(groups, turning.outputs.shape[1], inputs, dtype=torch.float64)
    parts = parts_of(turning, None if turning.all_inputs else rest)
    return Task(turning.inputs, turning.outputs, {part: torch.zeros_like(fisher) for part, fisher in parts.items()})


def parts_of(turning: Turning, rest: Tensor | None) -> Parts:
    parts = {"turned": turning.fisher, "by_output": turning.by_output, "rest": rest}
    return {part: fisher for part, fisher in parts.items() if fisher is not None}


def carried_over(before: Turning | None, rest: Tensor | None, task: Task) -> list[Tensor | None]:
    """The three parts, None for one that there is not."""
    found = carry_over(before, rest, task)
    assert found.keys() == task.parts.keys()
    return [found.get(part) for part in ("turned", "by_output", "rest")]


def total(turning: Turning, rest: Tensor | None) -> Tensor:
    """Sum of the Fisher over all parts, of each group."""
    return sum(part.sum((1, 2)) for part in parts_of(turning, rest).values())


def kronecker(turning: Turning, group: int) -> Tensor:
    """Columns v_k x u_j: the matrix that takes vec(turned) to vec(W), rows first."""
    v, u = turning.outputs[group], turning.inputs[group]
    return torch.einsum("ok,ij->oikj", v, u).reshape(len(v) * len(u), -1)


def whole_matrix(turning: Turning, group: int, rest: Tensor | None = None) -> Tensor:
    """The Fisher of all entries of W by explicit matrices: the sum over parts of C^T diag(F) C, C its coordinates."""
    v, u = turning.outputs[group], turning.inputs[group]
    eye_o, eye_i = torch.eye(len(v), dtype=torch.float64), torch.eye(len(u), dtype=torch.float64)
    turn = kronecker(turning, group).T
    whole = turn.T @ torch.diag(turning.fisher[group].flatten()) @ turn
    if turning.by_output is not None:
        turn = torch.kron(eye_o - v @ v.T, u.T)
        whole = whole + turn.T @ torch.diag(turning.by_output[group].flatten()) @ turn
    if rest is not None:
        turn = torch.kron(eye_o, eye_i - u @ u.T)
        whole = whole + turn.T @ torch.diag(rest[group].flatten()) @ turn
    return whole


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
@pytest.mark.parametrize("less", [(0, 0), (0, 1)])
def test_spread_is_the_diagonal_of_the_matrix_turned_back(sizes, less) -> None:
    turning = random_turning(torch.Generator().manual_seed(4), sizes, less)
    for group, spread in enumerate(turning.spread()):
        close(spread, whole_matrix(turning, group).diagonal().reshape(spread.shape))


def test_spread_has_all_of_the_fisher_that_is_not_in_the_rest() -> None:
    turning = random_turning(torch.Generator().manual_seed(4), (2, 5, 4), (2, 1))
    close(turning.spread().sum((1, 2)), total(turning, None))


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
        carried, by_output, rest = carried_over(turning, None, task_along(new))
        assert by_output is None
        assert rest is None
        close(carried.sum((1, 2)), turning.fisher.sum((1, 2)))
        turning = replace(new, fisher=carried)


@pytest.mark.parametrize("sizes", [(1, 4, 5), (2, 3, 4)])
@pytest.mark.parametrize("less", [(1, 1), (2, 3), (0, 2), (2, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_what_leaves_the_new_directions_goes_to_the_other_parts(sizes, less, seed: int) -> None:
    """Along both sides exactly, against explicit matrices. Nothing is lost: parts that fell below 0 add a little."""
    draw = torch.Generator().manual_seed(seed)
    old, new = random_turning(draw, sizes, less), random_turning(draw, sizes, less)
    rest_before = random_rest(draw, old)
    carried, by_output, rest = carried_over(old, rest_before, task_along(new))
    after = replace(new, fisher=carried, by_output=by_output)
    for part in (carried, by_output, rest):
        assert part is None or (part >= 0).all()
    assert (total(after, rest) >= total(old, rest_before) - 1e-12).all()
    for group in range(sizes[0]):
        turn, whole = kronecker(new, group), whole_matrix(old, group, rest_before)
        close(carried[group].flatten(), (turn.T @ whole @ turn).diagonal())


@pytest.mark.parametrize("less", [(1, 1), (2, 3), (0, 2), (2, 0)])
def test_the_other_parts_get_what_the_new_directions_do_not_have(less) -> None:
    draw, sizes = torch.Generator().manual_seed(3), (2, 4, 5)
    old, new = random_turning(draw, sizes, less), random_turning(draw, sizes, less)
    old = replace(old, by_output=None if old.by_output is None else torch.zeros_like(old.by_output))
    carried, by_output, rest = carried_over(old, None, task_along(new))
    for group in range(sizes[0]):
        v, u, whole = new.outputs[group], new.inputs[group], whole_matrix(old, group)
        along = torch.kron(torch.eye(len(v), dtype=torch.float64), u.contiguous())  # each output along new inputs
        each = (along.T @ whole @ along).diagonal().reshape(len(v), -1)
        left = (each - v.square() @ carried[group]).clamp(min=0)
        if by_output is not None:
            close(by_output[group], left)
        if rest is not None:
            has = v.square() @ carried[group] + (left if by_output is not None else 0)
            entries = whole.diagonal().reshape(len(v), -1)
            close(rest[group], (entries - has @ u.square().T).clamp(min=0))


@pytest.mark.parametrize("less", [(0, 0), (1, 2)])
def test_unchanged_coordinates_carry_everything_over_as_it_is(less) -> None:
    draw, sizes = torch.Generator().manual_seed(6), (2, 3, 4)
    turning = random_turning(draw, sizes, less)
    rest_before = random_rest(draw, turning)
    now, rest = turning, rest_before
    for _ in range(3):
        carried, by_output, rest = carried_over(now, rest, task_along(now))
        close(carried, turning.fisher)
        if by_output is not None and turning.by_output is not None:
            close(by_output, turning.by_output)
        if rest is not None and rest_before is not None:
            close(rest, rest_before)
        now = replace(now, fisher=carried, by_output=by_output)


@pytest.mark.parametrize("less", [(0, 0), (1, 2), (0, 2), (1, 0)])
def test_entries_held_one_by_one_so_far_are_turned_and_kept(less) -> None:
    """The first directions of a layer that was held entry by entry."""
    draw, sizes = torch.Generator().manual_seed(7), (2, 3, 4)
    new = random_turning(draw, sizes, less)
    entries = torch.rand(sizes, generator=draw, dtype=torch.float64)
    carried, by_output, rest = carried_over(None, entries, task_along(new))
    for group in range(sizes[0]):
        turn = kronecker(new, group)
        expected = (turn.T @ torch.diag(entries[group].flatten()) @ turn).diagonal()
        close(carried[group].flatten(), expected)
    along = entries @ new.inputs.square()
    if by_output is not None:
        close(by_output, (along - new.outputs.square() @ carried).clamp(min=0))
    if rest is None and by_output is None:
        close(carried.sum((1, 2)), entries.sum((1, 2)))
    elif rest is not None:
        close(rest, (entries - replace(new, fisher=carried, by_output=by_output).spread()).clamp(min=0))


def test_a_direction_that_is_new_takes_its_share_of_the_rest() -> None:
    """Coordinates inside the earlier ones take nothing of the rest, those at right angles to them all that is there."""
    eye = torch.eye(3, dtype=torch.float64)[None]
    one = torch.ones(1, 1, dtype=torch.float64)
    old = Turning(eye[..., :1], eye, one, torch.ones(1, 3).double(), torch.full((1, 3, 1), 5.0).double())
    rest_before = torch.arange(9.0, dtype=torch.float64).reshape(1, 3, 3)
    task = Task(eye[..., :2], eye, {"turned": torch.zeros(1, 3, 2).double(), "rest": torch.zeros(1, 3, 3).double()})
    carried, by_output, rest = carried_over(old, rest_before, task)
    assert by_output is None
    close(carried[..., 0], old.fisher[..., 0])
    close(carried[..., 1], rest_before[..., 1])
    assert rest is not None
    close(rest, torch.cat([rest_before[..., :1], torch.zeros(1, 3, 1).double(), rest_before[..., 2:]], -1))


def test_an_output_direction_that_is_new_takes_its_share_of_what_was_held_by_output() -> None:
    eye = torch.eye(3, dtype=torch.float64)[None]
    ones = torch.ones(1, 3).double(), torch.ones(1, 1).double()
    fisher, by_output = torch.full((1, 1, 3), 5.0).double(), torch.arange(9.0, dtype=torch.float64).reshape(1, 3, 3)
    by_output[:, 0] = 0  # the output that has a direction of its own
    old = Turning(eye, eye[..., :1], *ones, fisher, by_output)
    zeros = {"turned": torch.zeros(1, 2, 3).double(), "by_output": torch.zeros(1, 3, 3).double()}
    carried, left, rest = carried_over(old, None, Task(eye, eye[..., :2], zeros))
    assert rest is None
    close(carried, torch.cat([fisher, by_output[:, 1:2]], 1))
    assert left is not None
    close(left, torch.cat([torch.zeros(1, 2, 3).double(), by_output[:, 2:]], 1))


@pytest.mark.parametrize("less", [(1, 1), (2, 2), (0, 3), (2, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_coordinates_that_turn_to_and_fro_without_new_data_add_nothing(less, seed: int) -> None:
    """The Fisher that goes from the other parts to new directions is not left in them too."""
    draw, sizes = torch.Generator().manual_seed(seed), (2, 4, 5)
    turning, other = (random_turning(draw, sizes, less) for _ in range(2))
    rest = None if turning.all_inputs else torch.zeros(sizes, dtype=torch.float64)
    start = total(turning, rest)
    for _ in range(10):
        carried, by_output, rest = carried_over(turning, rest, task_along(other))
        turning, other = replace(other, fisher=carried, by_output=by_output), turning
        assert (total(turning, rest) >= start - 1e-12).all()
        assert (total(turning, rest) <= 1.3 * start).all()  # entries that fell below 0 add a little


def test_complete_means_that_a_side_spans_everything() -> None:
    draw = torch.Generator().manual_seed(8)
    for less in [(0, 0), (1, 0), (0, 1), (1, 1)]:
        turning = random_turning(draw, (2, 3, 4), less)
        assert (turning.all_outputs, turning.all_inputs) == (less[0] == 0, less[1] == 0)


def test_nothing_before_the_first_task() -> None:
    new = random_turning(torch.Generator().manual_seed(9), (1, 2, 3), (1, 1))
    parts = carried_over(None, None, task_along(new))
    assert all(part is not None and not part.any() for part in parts)


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
    found = damped(Task(turning.inputs, turning.outputs, {"turned": turning.fisher}), 0.3)
    assert found.parts.keys() == {"turned"}
    for group in range(sizes[0]):
        turn, whole = kronecker(turning, group), whole_matrix(turning, group)
        mean = partial_trace(whole, sizes[1]) / sizes[1]
        whole = whole + 0.3 * torch.kron(torch.eye(sizes[1], dtype=torch.float64), mean)
        close(found.parts["turned"][group].flatten(), (turn.T @ whole @ turn).diagonal())
    close(found.parts["turned"].sum((1, 2)), 1.3 * turning.fisher.sum((1, 2)))


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
        added.append(damped(Task(u, v, {"turned": fisher}), 0.3).parts["turned"] - fisher)
    for group in range(groups):
        mean = partial_trace(whole[group], outputs) / outputs
        close(added[0][group], 0.3 * (u[group].T @ mean @ u[group]).diagonal().expand(outputs, inputs))
    close(added[1], added[0])
    close(added[2], added[0])


@pytest.mark.parametrize("sizes", [(1, 4, 5), (2, 3, 4)])
@pytest.mark.parametrize("less", [(1, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_damping_of_few_directions_and_the_other_parts(sizes, less, seed: int) -> None:
    """Each part gets a share of the mean over outputs of what lies along its own inputs."""
    draw = torch.Generator().manual_seed(seed)
    turning = random_turning(draw, sizes, less)
    rest = random_rest(draw, turning)
    before = parts_of(turning, rest)
    found = damped(Task(turning.inputs, turning.outputs, before), 0.3).parts
    assert found.keys() == before.keys()
    added = {part: found[part] - before[part] for part in before}
    mean = turning.fisher.sum(1) / sizes[1]  # [g, j]
    if turning.by_output is not None:
        mean = mean + turning.by_output.mean(1)
        outside = torch.stack([1 - (v @ v.T).diagonal() for v in turning.outputs])
        close(added["by_output"], 0.3 * torch.einsum("go,gj->goj", outside, mean))
    close(added["turned"], 0.3 * mean[:, None].expand_as(turning.fisher))
    if rest is not None:
        close(added["rest"], 0.3 * rest.mean(1, keepdim=True).expand_as(rest))


@pytest.mark.parametrize("sizes", [(1, 4, 5), (2, 3, 4)])
def test_damping_adds_the_same_in_all(sizes) -> None:
    turning = random_turning(torch.Generator().manual_seed(2), sizes, (1, 1))
    before = parts_of(turning, torch.ones(sizes, dtype=torch.float64))
    found = damped(Task(turning.inputs, turning.outputs, before), 0.3).parts
    sums = [sum(part.sum((1, 2)) for part in parts.values()) for parts in (before, found)]
    close(sums[1], 1.3 * sums[0])


def test_no_damping_changes_nothing() -> None:
    turning = random_turning(torch.Generator().manual_seed(1), (2, 3, 4), (1, 1))
    before = parts_of(turning, torch.rand(2, 3, 4, dtype=torch.float64))
    found = damped(Task(turning.inputs, turning.outputs, before), 0.0).parts
    assert found.keys() == before.keys()
    for part, fisher in before.items():
        assert torch.equal(found[part], fisher)
