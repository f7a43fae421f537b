"""Kronecker products against dense matrices: inverse, product, and the way to add."""

import torch

from bitfreeze.lab.methods.kronecker import Kronecker, sum_by_traces

OUTPUTS, INPUTS = 3, 5


def positive(groups, width):
    root = torch.randn(groups, width, width + 2, dtype=torch.float64)
    return root @ root.mT


def some(seed, groups=2):
    torch.manual_seed(seed)
    return Kronecker(positive(groups, OUTPUTS), positive(groups, INPUTS))


def dense(product):
    """[g, o i, o i], for entries of a matrix [o, i] row by row."""
    return torch.stack([torch.kron(o, i) for o, i in zip(product.outputs, product.inputs, strict=True)])


def nearest_by_svd(total):
    """Van Loan and Pitsianis: the leading singular pair of the matrix whose rows are the blocks."""
    blocks = total.reshape(OUTPUTS, INPUTS, OUTPUTS, INPUTS).transpose(1, 2).reshape(OUTPUTS**2, INPUTS**2)
    u, s, v = torch.linalg.svd(blocks)
    return s[0] * torch.kron(u[:, 0].reshape(OUTPUTS, OUTPUTS), v[0].reshape(INPUTS, INPUTS))


def test_inverse_times_the_product_is_the_identity():
    product = some(0)
    identity = torch.eye(OUTPUTS * INPUTS, dtype=torch.float64).expand(2, -1, -1)
    torch.testing.assert_close(dense(product.inverse()) @ dense(product), identity)
    matrix = torch.randn(2, OUTPUTS, INPUTS, dtype=torch.float64)
    torch.testing.assert_close(product.inverse().times(product.times(matrix)), matrix)


def test_times_and_trace_are_those_of_the_dense_matrix():
    product, matrix = some(1), torch.randn(2, OUTPUTS, INPUTS, dtype=torch.float64)
    expected = (dense(product) @ matrix.reshape(2, -1, 1)).reshape(matrix.shape)
    torch.testing.assert_close(product.times(matrix), expected)
    torch.testing.assert_close(product.trace, dense(product).diagonal(dim1=1, dim2=2).sum(1))


def test_identity_has_the_scale_as_a_whole():
    identity = Kronecker.identity((2, OUTPUTS, INPUTS), 0.01, torch.empty(1, dtype=torch.float64))
    torch.testing.assert_close(dense(identity), 0.01 * torch.eye(15, dtype=torch.float64).expand(2, -1, -1))


def test_sum_by_traces_is_the_equation_and_does_not_depend_on_how_a_scale_is_shared():
    a, b = some(2), some(3)
    found = sum_by_traces(a, b)
    for g in range(2):
        trace = [torch.trace(side[g]).item() for side in (a.inputs, a.outputs, b.inputs, b.outputs)]
        pi = (trace[0] * trace[3] / (trace[2] * trace[1])) ** 0.5
        torch.testing.assert_close(found.inputs[g], a.inputs[g] + pi * b.inputs[g])
        torch.testing.assert_close(found.outputs[g], a.outputs[g] + b.outputs[g] / pi)
    other = sum_by_traces(a, Kronecker(b.outputs * 100, b.inputs / 100))
    torch.testing.assert_close(dense(other), dense(found))
    torch.testing.assert_close(dense(sum_by_traces(b, a)), dense(found))


def test_sum_by_traces_is_more_than_the_sum():
    a, b = some(2), some(3)
    more = dense(sum_by_traces(a, b)) - dense(a) - dense(b)
    assert torch.linalg.eigvalsh(more).min() > 0


def test_for_equal_products_it_is_twice_the_nearest_product_which_is_the_sum():
    a = some(7)
    found = dense(sum_by_traces(a, Kronecker(a.outputs / 3, a.inputs * 3)))
    torch.testing.assert_close(found, 2 * torch.stack([nearest_by_svd(2 * each) for each in dense(a)]))
    torch.testing.assert_close(found, 4 * dense(a))


def test_no_direction_becomes_less_precise_and_a_task_without_gradients_adds_nothing():
    a, b = some(8), some(9)
    assert torch.linalg.eigvalsh(dense(sum_by_traces(a, b)) - dense(a)).min() > 0
    b.outputs[1] = 0
    found = sum_by_traces(a, b)
    assert torch.equal(dense(found)[1], dense(a)[1])
    assert not torch.equal(dense(found)[0], dense(a)[0])
