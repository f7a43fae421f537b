"""LwF: the distillation against its formula, and which heads and which network it comes from."""

import pytest
import torch

from bitfreeze.lab.methods.lwf import distillation
from bitfreeze.lab.tasks import Batch
from support.small_tasks import TASKS, convolutional, few, learn, prepare, train


def entropy(p):
    return -(p * p.log()).sum(1).mean()


@pytest.fixture
def scores():
    torch.manual_seed(0)
    return torch.randn(50, 7, requires_grad=True), torch.randn(50, 7)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0])
def test_distillation_is_the_cross_entropy_of_probabilities_raised_to_a_power(scores, temperature):
    """softmax(z)^(1/T), brought back to sum 1, is softmax(z / T)."""
    new, old = scores
    p, q = (z.softmax(1) ** (1 / temperature) for z in (new, old))
    p, q = (raised / raised.sum(1, keepdim=True) for raised in (p, q))
    truth = -(q * p.log()).sum(1).mean()
    assert distillation(new, old, temperature).item() == pytest.approx(truth.item(), rel=1e-5)


def test_equal_scores_give_the_entropy_and_no_gradient(scores):
    new, _ = scores
    value = distillation(new, new.detach())
    value.backward()
    assert value.item() == pytest.approx(entropy(new.softmax(1)).item(), rel=1e-6)
    assert new.grad.abs().max() < 1e-7


def test_distillation_is_at_least_the_entropy(scores):
    new, old = scores
    assert distillation(new, old) > entropy(old.softmax(1)) + 0.1


def learned(count, **options):
    """A method that has learned some tasks and then moved, and a batch of the task after them."""
    method = prepare("lwf", **options)
    for task in TASKS[:count]:
        learn(method, task)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in method.net.parameters():
            p += 0.1 * torch.randn_like(p)
    x, y = few(TASKS[count], 40).train.take(slice(None))
    return method, Batch(x, y, TASKS[count])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_earlier_head_gives_one_term(count):
    method, batch = learned(count, strength=1.5, temperature=2.0)
    with torch.no_grad():
        terms = [distillation(method.net(batch.x, k), method.previous(batch.x, k), 2.0) for k in range(count)]
        own = torch.nn.functional.cross_entropy(method.net(batch.x, count), batch.y)
        assert method.loss(batch).item() == pytest.approx((own + 1.5 * sum(terms)).item(), rel=1e-5)


def test_the_order_of_earlier_tasks_does_not_matter():
    method, batch = learned(3)
    before = method.loss(batch).item()
    method.learned = [2, 0, 1]
    assert method.loss(batch).item() == pytest.approx(before, rel=1e-6)


def test_the_previous_network_is_that_of_the_last_task_and_stays():
    method = prepare("lwf")
    learn(method, TASKS[0])
    for task in TASKS[1:3]:
        start = {name: value.clone() for name, value in method.net.state_dict().items()}
        train(method, task)
        frozen = method.previous.state_dict()
        assert all(torch.equal(frozen[name], start[name]) for name in start)
        assert all(p.grad is None and not p.requires_grad for p in method.previous.parameters())
        assert not torch.equal(method.net.heads[0].weight, start["heads.0.weight"])
        method.end_task(task, few(task, 10))


def test_targets_have_no_dropout():
    method = prepare("lwf", convolutional)
    method.net.train()
    method.end_task(TASKS[0], few(TASKS[0], 10))
    method.net.train()
    assert not any(module.training for module in method.previous.modules())
    x, _ = few(TASKS[1], 10).train.take(slice(None))
    method.net.eval()
    assert torch.equal(method.previous(x, 0), method.net(x, 0))


def test_the_new_network_has_dropout_and_one_forward_pass_for_all_heads():
    method = prepare("lwf", convolutional)
    learn(method, TASKS[0])
    method.net.train()
    passes = []
    method.net.backbone.register_forward_hook(lambda module, x, y: passes.append(module.training))
    x, y = few(TASKS[1], 10).train.take(slice(None))
    method.loss(Batch(x, y, TASKS[1]))
    assert passes == [True]


def test_validation_looks_at_the_distillation_too():
    method, batch = learned(2)
    splits = [(batch.task, few(batch.task, 40).valid)]
    whole = method.validation_loss(splits, batch.task, 40)
    assert whole == pytest.approx(method.loss(batch).item(), rel=1e-5)
    method.learned = []
    assert whole > method.validation_loss(splits, batch.task, 40) + 0.01


def test_extra_memory_is_one_network():
    method = prepare("lwf")
    assert method.extra_bytes() == 0
    learn(method, TASKS[0])
    assert method.extra_bytes() == sum(p.nbytes for p in method.net.parameters())


@pytest.mark.parametrize("options", [{"strength": -1.0}, {"temperature": 0.0}, {"temperature": float("nan")}])
def test_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        prepare("lwf", **options)
