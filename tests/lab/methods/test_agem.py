"""A-GEM: the projection, the memory, and the gradient that is projected by."""

from collections import deque

import pytest
import torch

from bitfreeze.lab.methods.agem import Rings, project_
from bitfreeze.lab.tasks import Batch
from support.small_tasks import STREAM, TASKS, few, flat, learn, prepare

SHAPES = [(30, 20), (20,), (7, 3)]


def vectors(seed, toward=0.0):
    """A gradient and a reference, as lists of tensors; ``toward`` draws the first to the second."""
    torch.manual_seed(seed)
    reference = [torch.randn(shape) for shape in SHAPES]
    return [torch.randn(shape) + toward * r for shape, r in zip(SHAPES, reference, strict=True)], reference


def joined(parts):
    return torch.cat([part.flatten() for part in parts]).double()


def projected(gradient, reference):
    result = [part.clone() for part in gradient]
    project_(result, reference)
    return result


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("toward", [-2.0, -0.1, 0.0, 0.1, 2.0])
def test_projection_never_points_against_the_reference_and_is_never_longer(seed, toward):
    gradient, reference = vectors(seed, toward)
    g, r, result = joined(gradient), joined(reference), joined(projected(gradient, reference))
    slack = 1e-6 * g.norm() * r.norm()
    assert result @ r >= -slack
    assert result.norm() <= g.norm() * (1 + 1e-6)
    if g @ r < 0:
        assert abs(result @ r) <= slack
        assert torch.allclose(result, g - (g @ r) / (r @ r) * r, atol=1e-5)
    else:
        assert torch.equal(result, g)


def test_projection_of_the_opposite_is_0():
    _, reference = vectors(0)
    assert joined(projected([-3 * part for part in reference], reference)).abs().max() < 1e-5


def test_projecting_again_changes_nothing():
    gradient, reference = vectors(0, -1.0)
    once = projected(gradient, reference)
    assert torch.allclose(joined(projected(once, reference)), joined(once), atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_a_reference_of_0_leaves_the_gradient(scale):
    gradient, reference = vectors(0, -1.0)
    result = projected(gradient, [scale * part for part in reference])
    assert torch.equal(joined(result), joined(gradient))


@pytest.mark.parametrize("sizes", [[1] * 40, [4] * 20, [50, 50], [30, 2, 9, 1, 3, 17, 4]])
def test_rings_hold_the_last_samples_of_each_class(sizes):
    torch.manual_seed(0)
    rings, truth = Rings.empty(3, 5, torch.empty(1, 2)), [deque(maxlen=5) for _ in range(3)]
    for size in sizes:
        x, y = torch.randn(size, 2), torch.tensor([0.8, 0.2, 0.0]).multinomial(size, replacement=True)
        rings.add(x, y)
        for sample, label in zip(x, y.tolist(), strict=True):
            truth[label].append(tuple(sample.tolist()))
        held_x, held_y = rings.take(torch.arange(len(rings)))
        for label in range(3):
            assert {tuple(s.tolist()) for s in held_x[held_y == label]} == set(truth[label])
    assert len(rings) == sum(map(len, truth)) == 10  # class 2 was never seen


def test_memory_is_full_after_each_task_with_right_labels():
    method = prepare("agem", per_class=6)
    for task in TASKS[:3]:
        learn(method, task)
        assert sum(map(len, method.rings.values())) == 6 * 2 * (task.index + 1)
        assert method.buffer_bytes() == 6 * 2 * (task.index + 1) * 64 * 4
    for index, rings in method.rings.items():
        x, y = STREAM.load(TASKS[index]).train.take(slice(None))
        known = {tuple(a.flatten().tolist()): b for a, b in zip(x, y.tolist(), strict=True)}
        held_x, held_y = rings.take(torch.arange(len(rings)))
        assert [known[tuple(a.flatten().tolist())] for a in held_x] == held_y.tolist() == [0] * 6 + [1] * 6


def test_the_task_at_hand_is_never_looked_at():
    method = prepare("agem", per_class=6)
    drawn, draw = [], method._draw

    def watched(task):
        memory = draw(task)
        drawn.append((task.index, set(memory)))
        return memory

    method._draw = watched
    for task in TASKS[:3]:
        learn(method, task)
    assert dict(drawn) == {0: set(), 1: {0}, 2: {0, 1}}
    assert all(index not in owners for index, owners in drawn)


def filled(per_class=6, **options):
    """A method with three tasks in memory, at weights that are not an optimum, and the task at hand."""
    method = prepare("agem", per_class=per_class, **options)
    for task in TASKS[:3]:
        learn(method, task)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in method.net.parameters():
            p += 0.3 * torch.randn_like(p)
    return method, TASKS[3]


def test_reference_batch_is_drawn_without_repeats_and_is_everything_if_there_is_less(monkeypatch):
    method, task = filled()
    assert sum(len(y) for _, y in method._draw(task).values()) == 36
    monkeypatch.setattr("bitfreeze.lab.methods.agem.REFERENCE_BATCH", 20)
    counts = torch.zeros(3)
    for _ in range(50):
        memory = method._draw(task)
        samples = torch.cat([x for x, _ in memory.values()])
        assert len(samples) == len(samples.unique(dim=0)) == 20
        counts += torch.tensor([len(memory[k][1]) if k in memory else 0 for k in range(3)])
    assert (counts / 50 - 20 / 3).abs().max() < 1  # all tasks alike


def test_the_reference_gradient_is_the_mean_over_samples_each_through_its_own_head():
    method, task = filled()
    memory = method._draw(task)
    truth, count = torch.zeros_like(flat(method.net)), 0
    for index, (x, y) in memory.items():
        for sample, label in zip(x, y, strict=True):
            loss = torch.nn.functional.cross_entropy(method.net(sample[None], index), label[None])
            found = torch.autograd.grad(loss, list(method.net.parameters()), materialize_grads=True)
            truth += torch.cat([g.flatten() for g in found])
            count += 1
    parameters = list(method.net.parameters())
    found = torch.autograd.grad(method._memory_loss(memory), parameters, materialize_grads=True)
    assert torch.allclose(torch.cat([g.flatten() for g in found]), truth / count, atol=1e-6)
    assert count == 36


def test_a_step_that_would_harm_the_memory_is_projected_over_all_parameters():
    """Labels are turned around, so that the gradients are at odds."""
    method, task = filled()
    with torch.no_grad():
        method.net.heads[task.index].load_state_dict(method.net.heads[0].state_dict())
    x, y = few(TASKS[0], 40).train.take(slice(None))
    method.loss(Batch(x, 1 - y, task)).backward()
    parameters = list(method.net.parameters())
    before = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters])
    reference = torch.autograd.grad(method._memory_loss(method._draw(task)), parameters, materialize_grads=True)
    reference = torch.cat([r.flatten() for r in reference])
    assert before @ reference < 0
    method.before_step(task)
    after = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters])
    assert torch.allclose(after, before - (before @ reference) / (reference @ reference) * reference, atol=1e-5)
    assert method.net.heads[1].weight.grad.any()  # heads of earlier tasks take part
    assert method.net.heads[4].weight.grad is None


def test_a_step_that_helps_the_memory_is_left_alone():
    method, task = filled()
    parameters = list(method.net.parameters())
    reference = torch.autograd.grad(method._memory_loss(method._draw(task)), parameters, materialize_grads=True)
    for p, r in zip(parameters, reference, strict=True):
        p.grad = 2 * r
    method.before_step(task)
    assert all(torch.equal(p.grad, 2 * r) for p, r in zip(parameters, reference, strict=True))


def test_in_the_middle_of_a_task_the_memory_survives_in_the_state():
    method, task = filled()
    x, y = few(task, 5).train.take(slice(None))
    method.observe(Batch(x, y, task), 0.0)
    other = prepare("agem", per_class=6)
    other.load_state_dict(method.state_dict())
    x, y = few(task, 20).train.take(slice(5, 20))
    for each in (method, other):
        assert len(each.rings[task.index]) == 5
        each.observe(Batch(x, y, task), 0.0)
        assert len(each.rings[task.index]) == 12
    assert torch.equal(method.rings[task.index].x, other.rings[task.index].x)


def test_bad_options():
    with pytest.raises(ValueError, match=r"method.per_class must be at least 1, got 0"):
        prepare("agem", per_class=0)
