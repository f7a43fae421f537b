"""EWC: the penalty against autograd and closed forms, the Fisher against one backward pass a sample."""

import pytest
import torch

from bitfreeze.lab.methods.pull import pull
from bitfreeze.lab.tasks import TaskData
from support.small_tasks import TASKS, convolutional, expected_squares, few, flat, learn, mlp, prepare, train


def tensors(*shapes):
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def moved(method):
    with torch.no_grad():
        for p in method.net.parameters():
            p += 0.1 * torch.randn_like(p)


def test_pull_and_its_gradient_are_those_of_the_formula():
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), (2, 2, 3)]
    parameters, anchors = tensors(*shapes), tensors(*shapes)
    weights = [w.square() for w in tensors(*shapes)]
    for used in (weights, None):
        leaves = [p.clone().requires_grad_() for p in parameters]
        (7 * pull(leaves, anchors, used)).backward()
        plain = [p.clone().requires_grad_() for p in parameters]
        ones = [torch.ones_like(p) for p in parameters] if used is None else used
        truth = 7 * sum((w / 2 * (p - a) ** 2).sum() for p, a, w in zip(plain, anchors, ones, strict=True))
        truth.backward()
        assert 7 * pull(parameters, anchors, used).item() == pytest.approx(truth.item(), rel=1e-12)
        for p, q in zip(leaves, plain, strict=True):
            assert torch.allclose(p.grad, q.grad, rtol=1e-12)


def test_a_graph_gone_through_twice_is_an_error_and_not_a_wrong_gradient():
    parameter = torch.ones(3, requires_grad=True)
    value = 2 * pull([parameter], [torch.zeros(3)], [torch.ones(3)])
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0, 1e9])
def test_minimiser_of_a_quadratic_loss_with_the_pull(strength):
    """1/2 a (x - m)^2 + strength F / 2 (x - x*)^2 is least at (a m + strength F x*) / (a + strength F)."""
    a, m, anchor, fisher = 2.0, 5.0, torch.tensor([1.0, 1.0]).double(), torch.tensor([0.7, 0.0]).double()
    x = torch.tensor([3.0, 3.0], dtype=torch.float64, requires_grad=True)
    loss = (a / 2 * (x - m) ** 2).sum() + strength * pull([x], [anchor], [fisher])
    loss.backward()
    newton = x.detach() - x.grad / (a + strength * fisher)
    assert torch.allclose(newton, (a * m + strength * fisher * anchor) / (a + strength * fisher))
    if strength == 1e9:  # what has a Fisher is frozen, what has none is free
        assert torch.allclose(newton, torch.tensor([1.0, 5.0]).double())


def test_penalty_and_its_gradient_are_0_at_the_anchor_and_those_of_the_formula_elsewhere():
    method = prepare("ewc", strength=40.0)
    assert method.penalty(TASKS[0]) is None
    learn(method, TASKS[0])
    method.net.zero_grad()
    penalty = method.penalty(TASKS[1])
    penalty.backward()
    assert penalty.item() == 0
    assert not any(p.grad.any() for p in method.net.parameters())
    moved(method)
    method.net.zero_grad()
    penalty = method.penalty(TASKS[1])
    penalty.backward()
    total = 0.0
    for name, p in method.net.named_parameters():
        apart = (p - method.anchor[name]).detach()
        total += 40 * (method.fisher[name] / 2 * apart**2).double().sum().item()
        assert torch.allclose(p.grad, 40 * method.fisher[name] * apart, rtol=1e-5, atol=1e-12)
    assert penalty.item() == pytest.approx(total, rel=1e-4)
    assert total > 0


def test_without_any_fisher_it_is_fine_tuning():
    method, plain = prepare("ewc", strength=1e6), prepare("ft")
    for task in TASKS[:3]:
        learn(method, task)
        method.fisher = {name: torch.zeros_like(value) for name, value in method.fisher.items()}
        learn(plain, task)
    assert torch.equal(flat(method.net), flat(plain.net))


@pytest.mark.parametrize("make_net", [mlp, convolutional])
def test_fisher_is_the_running_mean_of_brute_force_truth_and_0_for_other_heads(make_net):
    method = prepare("ewc", make_net, labels="exact")
    truths = []
    for task in TASKS[:3]:
        data = few(task, 20)
        truths.append(expected_squares(method.net, task, data.train))
        method.end_task(task, data)
        moved(method)
    for name, fisher in method.fisher.items():
        mean = sum(truth[name] for truth in truths) / 3
        assert torch.allclose(fisher.double(), mean, rtol=1e-4, atol=1e-12), name
    assert all(method.fisher[f"heads.{k}.weight"].any() for k in range(3))
    assert not any(method.fisher[f"heads.{k}.{part}"].any() for k in (3, 4) for part in ("weight", "bias"))


def test_only_the_mean_over_labels_sees_the_fisher_of_data_that_are_fitted():
    """The right label has probability 1 - e for each sample: no other is drawn, and e^2 takes the place of e."""
    fishers = {}
    for labels in ("exact", "sample", "true"):
        method = prepare("ewc", labels=labels)
        data, head = few(TASKS[0], 40), method.net.heads[0]
        only = data.train.subset(data.train.y == 1)
        with torch.no_grad():
            head.weight.zero_()
            head.bias.copy_(torch.tensor([0.0, 8.0]))
        e = torch.tensor([0.0, 8.0]).softmax(0)[0].item()
        method.end_task(TASKS[0], TaskData(only, only, only))
        fishers[labels] = method.fisher["heads.0.bias"][0].item()
    assert fishers["exact"] == pytest.approx(e * (1 - e), rel=1e-3)
    assert fishers["sample"] == fishers["true"] == pytest.approx(e**2, rel=1e-3)


def test_mean_times_the_number_of_tasks_is_the_sum():
    both = [prepare("ewc", accumulate=kind) for kind in ("mean", "sum")]
    for task in TASKS[:4]:
        for method in both:
            torch.manual_seed(task.index)
            method.end_task(task, few(task, 100))
            moved(method)
    mean, total = (method.fisher for method in both)
    assert all(torch.allclose(4 * mean[name], total[name], rtol=1e-5) for name in mean)


def test_the_anchor_is_the_last_weights():
    method = prepare("ewc")
    for task in TASKS[:2]:
        learn(method, task)
    assert all(torch.equal(method.anchor[name], p) for name, p in method.net.named_parameters())
    train(method, TASKS[2])
    assert not torch.equal(method.anchor["backbone.1.weight"], method.net.backbone[1].weight)


def test_what_mattered_moves_less_than_under_fine_tuning():
    distance = {}
    for strength in (0.0, 200.0):
        method = prepare("ewc", strength=strength)
        learn(method, TASKS[0])
        train(method, TASKS[1])
        pairs = [(p, method.anchor[name], method.fisher[name]) for name, p in method.net.named_parameters()]
        distance[strength] = sum((f * (p - a) ** 2).sum().item() for p, a, f in pairs)
    assert distance[200.0] < 0.3 * distance[0.0]


def test_the_report_gives_the_pull_that_bounds_the_learning_rate():
    """Plain SGD swings ever wider about the anchor where lr * strength * F > 2, and settles where it is less."""
    method = prepare("ewc", strength=250.0)
    assert method.report() == {}
    learn(method, TASKS[0])
    steepest = method.report()["largest_pull"]
    start = {name: value.clone() for name, value in method.net.state_dict().items()}
    for factor, settles in ((1.9, True), (2.1, False)):
        method.net.load_state_dict(start)
        moved(method)
        optimizer = torch.optim.SGD(method.net.parameters(), lr=factor / steepest)
        values = []
        for _ in range(200):
            optimizer.zero_grad()
            value = method.penalty(TASKS[1])
            value.backward()
            optimizer.step()
            values.append(value.item())
        assert (values[-1] < values[0]) == settles


def test_validation_looks_at_the_penalty_too():
    method = prepare("ewc")
    learn(method, TASKS[0])
    moved(method)
    splits = [(TASKS[1], few(TASKS[1], 50).valid)]
    whole = method.validation_loss(splits, TASKS[1], 25)
    penalty = method.penalty(TASKS[1]).item()
    method.learned = 0
    assert whole == pytest.approx(method.validation_loss(splits, TASKS[1], 25) + penalty, rel=1e-5)
    assert penalty > 0


def test_samples_are_drawn_from_all_of_the_data():
    """Stored data may be sorted by class, so the first samples would be of one class."""
    method = prepare("ewc", samples=40, labels="exact")
    data = few(TASKS[0], 200)
    method.end_task(TASKS[0], data)
    first = expected_squares(method.net, TASKS[0], data.train.subset(torch.arange(40)))
    assert not torch.allclose(method.fisher["heads.0.weight"].double(), first["heads.0.weight"], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1.0}, "method.strength must be at least 0, got -1.0; 0 turns the pull off"),
        ({"strength": float("nan")}, "method.strength must be a number, got nan"),
        ({"accumulate": "max"}, "method.accumulate must be mean or sum, got 'max'"),
        ({"labels": "drawn"}, "method.labels must be sample, exact or true, got 'drawn'"),
        ({"samples": 0}, "method.samples must be at least 1, or none for all samples, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        prepare("ewc", **options)
