"""DER and DER++: the gradient by hand, what is kept, and heads that have grown since."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.nets import MultiHead
from bitfreeze.lab.tasks import Batch
from support.small_tasks import STREAM, TASKS, flat, learn, mlp, prepare


def some(task, count=16, start=0):
    return Batch(*STREAM.load(task).train.take(slice(start, start + count)), task)


def two_tasks(**options):
    """A method with samples of two tasks in its buffer, and weights that have moved since."""
    method = prepare("der", buffer=40, **options)
    for task in TASKS[:2]:
        learn(method, task)
    method.net.train()
    return method


@pytest.mark.parametrize(("alpha", "beta"), [(0.7, 0.0), (0.0, 0.4), (0.7, 0.4)])
def test_gradient_is_that_of_the_formula_sample_by_sample(alpha, beta):
    method = two_tasks(alpha=alpha, beta=beta)
    batch = some(TASKS[1])
    net, held = method.net, method.reservoir.fields
    torch.manual_seed(3)
    draws = [torch.randperm(40)[:16] for weight in (alpha, beta) if weight]  # each term has its own draw
    loss = F.cross_entropy(net(batch.x, 1), batch.y)
    if alpha:
        for row in draws[0].tolist():
            z = net(held["x"][row : row + 1], int(held["task"][row]))[0]
            loss = loss + alpha / 16 * ((z - held["scores"][row]) ** 2).mean()
    if beta:
        for row in draws[-1].tolist():
            z = net(held["x"][row : row + 1], int(held["task"][row]))
            loss = loss + beta / 16 * F.cross_entropy(z, held["y"][row : row + 1])
    expected = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    torch.manual_seed(3)
    found = torch.autograd.grad(method.objective([batch]), list(net.parameters()), allow_unused=True)
    assert {int(held["task"][row]) for row in draws[0]} == {0, 1}
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


def test_without_weights_it_is_fine_tuning_to_the_last_bit():
    results = []
    for name, options in (("der", {"alpha": 0.0, "beta": 0.0}), ("ft", {})):
        method = prepare(name, **options)
        for task in TASKS[:3]:
            learn(method, task)
        results.append(flat(method.net))
    assert torch.equal(*results)
    assert not torch.equal(flat(two_tasks().net), flat(two_tasks(beta=0.0).net))


def test_samples_are_kept_with_the_scores_that_the_step_started_from():
    method = prepare("der", buffer=16)
    batch = some(TASKS[0])
    before = method.logits(batch.x, TASKS[0]).detach()
    method.train_batch(batch, 0.0, method.optimizers(TASKS[0], 0.1))
    held = method.reservoir.fields
    assert torch.equal(held["scores"], before)
    assert not torch.equal(held["scores"], method.logits(batch.x, TASKS[0]))
    assert torch.equal(held["x"], batch.x)
    assert torch.equal(held["y"], batch.y)
    assert held["task"].unique().tolist() == [0]
    assert method.buffer_bytes() == 16 * (4 * 64 + 8 + 4 * 2 + 8 + 8)


def test_first_step_has_nothing_to_replay():
    method = prepare("der")
    batch = some(TASKS[0])
    assert torch.equal(method.objective([batch]), F.cross_entropy(method.logits(batch.x, TASKS[0]), batch.y))


def test_only_the_columns_that_were_kept_are_compared():
    """A head that grew after a sample was kept: the new columns get no gradient from the distance."""
    method = prepare("der", buffer=8, beta=0.0, alpha=2.0)
    grown = torch.nn.Linear(12, 5)
    narrow, wide = some(TASKS[0], 4), some(TASKS[0], 4, 4)
    for batch, columns in ((narrow, 2), (wide, 3)):
        method.reservoir.add(
            x=batch.x, y=batch.y, scores=torch.zeros(4, columns), columns=torch.full((4,), columns),
            task=torch.zeros(4, dtype=torch.long),
        )  # fmt: skip
    method.net.heads[0] = grown
    squares = [method.net(batch.x, 0)[:, :columns].square().mean(1) for batch, columns in ((narrow, 2), (wide, 3))]
    distance = method._distance(method.reservoir.draw(8))
    torch.testing.assert_close(distance, torch.cat(squares).mean())
    assert [bool(row.any()) for row in torch.autograd.grad(distance, grown.weight)[0]] == [True] * 3 + [False] * 2


def test_norms_by_batch_see_all_replayed_samples_together():
    """One sample of a task would have no statistics of its own."""

    def normalised():
        layers = [nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12, track_running_stats=False), nn.ReLU()]
        return MultiHead(nn.Sequential(*layers), 12, [task.classes for task in TASKS])

    method = prepare("der", normalised, buffer=6)
    batch = some(TASKS[0], 6)
    owners = torch.tensor([0, 0, 1, 0, 0, 0])
    columns = torch.full((6,), 2)
    method.reservoir.add(x=batch.x, y=batch.y, scores=torch.zeros(6, 2), columns=columns, task=owners)
    features = method.net.backbone(batch.x)
    z = torch.stack([method.net.heads[owner](own) for owner, own in zip(owners.tolist(), features, strict=True)])
    torch.testing.assert_close(method._distance(method.reservoir.draw(6)), z.square().mean())


def test_state_is_a_copy_and_goes_on_filling():
    method = two_tasks()
    state = method.state_dict()
    kept = {name: values.clone() for name, values in state["fields"].items()}
    other = make_method("der", {"buffer": 40})
    other.build(mlp(), TASKS)
    other.load_state_dict(state)
    for each in (method, other):
        torch.manual_seed(0)
        each.reservoir.add(
            **{name: values.flip(0).repeat(5, *[1] * (values.ndim - 1)) for name, values in kept.items()}
        )
    assert all(torch.equal(state["fields"][name], kept[name]) for name in kept)
    assert all(torch.equal(method.reservoir.fields[name], other.reservoir.fields[name]) for name in kept)
    assert any(not torch.equal(method.reservoir.fields[name], kept[name]) for name in kept)


@pytest.mark.parametrize("options", [{"buffer": 0}, {"alpha": -0.1}, {"beta": -1.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=rf"method\.{next(iter(options))} must be at least"):
        make_method("der", options)
