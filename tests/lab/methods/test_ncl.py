"""NCL: the step against dense matrices, the factors against autograd, and the prior alone, which is L2."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.methods.kronecker import Kronecker
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.tasks import Batch
from support.small_tasks import STREAM, TASKS, convolutional, few, learn, prepare


def normalised() -> MultiHead:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU())
    return MultiHead(layers, 12, [task.classes for task in TASKS])


def some(task, count=16):
    return Batch(*STREAM.load(task).train.take(slice(count)), task)


def narrow() -> MultiHead:
    return MultiHead(nn.Sequential(nn.Flatten(), nn.AvgPool1d(8), nn.Linear(8, 5), nn.ReLU()), 5, [2] * 5)


def joined(layer):
    return torch.cat([layer.weight.detach().flatten(1), layer.bias.detach()[:, None]], 1).double()


# the step


@pytest.mark.parametrize("strength", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("learned", [False, True])
def test_under_the_prior_alone_a_step_is_gradient_descent_with_l2(strength, learned):
    """Precision 1 / N: the gradient as it is, and strength / N times W, or W - W0 if such a W0 is there."""
    method = prepare("ncl", strength=strength, data_size=50)
    method.begin_task(TASKS[0], few(TASKS[0], 20))
    layer, start = method.net.backbone[1], torch.zeros(12, 65, dtype=torch.float64)
    if learned:
        start = torch.randn(12, 65).double()
        method.precision = {"backbone.1": Kronecker.identity((1, 12, 65), 1 / 50, layer.weight.detach())}
        method.anchor = {"backbone.1": start.float()[None]}
        method.begin_task(TASKS[0], few(TASKS[0], 20))
    before, batch = joined(layer), some(TASKS[0])
    gradients = torch.autograd.grad(method.loss(batch), [layer.weight, layer.bias])
    gradient = torch.cat([gradients[0], gradients[1][:, None]], 1).double()
    method.train_batch(batch, 0.0, method.optimizers(TASKS[0], 0.1))
    expected = before - 0.1 * (gradient + strength / 50 * (before - start))
    torch.testing.assert_close(joined(layer), expected, atol=1e-6, rtol=1e-5)


def test_step_is_that_of_the_dense_precision():
    """W - lr / N * P^-1 (g + lambda P (W - W0)), with P as a matrix of 45 x 45 numbers."""
    method = prepare("ncl", narrow, strength=3.0, data_size=40)
    for task in TASKS[:2]:
        learn(method, task)
    method.begin_task(TASKS[2], few(TASKS[2], 20))
    layer, batch = method.net.backbone[2], some(TASKS[2])
    with torch.no_grad():
        layer.weight.add_(0.1 * torch.randn(5, 8))  # away from W0
    precision, start = method.precision["backbone.2"], method.anchor["backbone.2"][0].double()
    full = torch.kron(precision.outputs[0].double(), precision.inputs[0].double())
    before = joined(layer)
    gradients = torch.autograd.grad(method.loss(batch), [layer.weight, layer.bias])
    gradient = torch.cat([gradients[0], gradients[1][:, None]], 1).double()
    slope = gradient.flatten() + 3.0 * full @ (before - start).flatten()
    expected = before - 0.1 / 40 * torch.linalg.solve(full, slope).reshape(5, 9)
    method.train_batch(batch, 0.0, method.optimizers(TASKS[2], 0.1))
    torch.testing.assert_close(joined(layer), expected, atol=1e-6, rtol=1e-4)
    assert (expected - before).abs().max() > 1e-4


def test_a_step_from_few_rows_is_that_of_whole_gradients():
    """A layer that is much wider than the batch, and beside it the same method without the short cut."""

    def wide() -> MultiHead:
        layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 70), nn.ReLU(), nn.Linear(70, 66, bias=False), nn.ReLU())
        return MultiHead(layers, 66, [2] * 5)

    after, short = [], []
    for whole in (False, True):
        torch.manual_seed(0)
        method = prepare("ncl", wide, data_size=40)
        learn(method, TASKS[0])
        method.begin_task(TASKS[1], few(TASKS[1], 20))
        if whole:
            method.thin.between = lambda *_: None
        method.train_batch(some(TASKS[1], 12), 0.0, method.optimizers(TASKS[1], 0.1))
        after.append([p.detach().clone() for p in method.net.backbone.parameters()])
        short.append(method.thin.between(method.net.backbone[1], torch.eye(70), torch.eye(65)) is not None)
    assert short == [True, False]
    for ours, theirs in zip(*after, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_penalty_is_the_quadratic_form_and_part_of_validation_alone():
    method = prepare("ncl", narrow, strength=2.0, data_size=40)
    data = few(TASKS[0], 30)
    method.begin_task(TASKS[0], data)
    layer = method.net.backbone[2]
    assert method.penalty(TASKS[0]).item() == pytest.approx(2.0 / 2 * joined(layer).square().sum().item() / 40)
    learn(method, TASKS[0])
    assert method.penalty(TASKS[1]).item() == 0
    with torch.no_grad():
        layer.bias.add_(torch.randn(5))
    precision = method.precision["backbone.2"]
    apart = (joined(layer) - method.anchor["backbone.2"][0].double()).flatten()
    full = torch.kron(precision.outputs[0].double(), precision.inputs[0].double())
    expected = 2.0 / 2 * (apart @ full @ apart).item()
    assert method.penalty(TASKS[1]).item() == pytest.approx(expected, rel=1e-4)
    x, y = data.valid.take(slice(None))
    plain = F.cross_entropy(method.logits(x, TASKS[1]), y).item()
    assert method.validation_loss([(TASKS[1], data.valid)], TASKS[1], 10) == pytest.approx(plain + expected, rel=1e-4)
    batch = Batch(x, y, TASKS[1])
    assert torch.equal(method.objective([batch]), method.loss(batch))


# the factors


def brute_force(net, layer, patches, task, split):
    """Sums over samples, labels and positions, one backward pass for each sample and label."""
    seen = {}
    handle = layer.register_forward_hook(lambda _, args, out: seen.update(x=args[0], z=out))
    inputs = outputs = positions = 0
    for x, _ in split.batches(1):
        scores = net(x, task.index).log_softmax(1)[0]
        rows = patches(seen["x"].detach())
        rows = torch.cat([rows, torch.ones(len(rows), 1)], 1).double()
        reached = torch.zeros(len(rows), dtype=torch.bool)
        for score in scores:
            (delta,) = torch.autograd.grad(score, seen["z"], retain_graph=True)
            delta = delta.reshape(len(layer.bias), -1).T.double()
            outputs = outputs + score.exp().item() * delta.T @ delta
            reached |= delta.any(1)
        inputs = inputs + rows[reached].T @ rows[reached]
        positions += int(reached.sum())
    handle.remove()
    return outputs / len(split), inputs / positions


@pytest.mark.parametrize(
    ("make", "index", "patches"),
    [
        (narrow, 2, lambda x: x),
        (convolutional, 0, lambda x: F.unfold(x, 3)[0].T),
        (convolutional, 5, lambda x: x),
    ],
)
def test_factors_are_those_of_each_sample_and_label(make, index, patches):
    method = prepare("ncl", make)
    data = few(TASKS[0], 25)
    method.net.eval()
    outputs, inputs = brute_force(method.net, method.net.backbone[index], patches, TASKS[0], data.train)
    found = method._task_precision(TASKS[0], data)[f"backbone.{index}"]
    torch.testing.assert_close(found.outputs[0].double(), outputs, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(found.inputs[0].double(), inputs, rtol=1e-4, atol=1e-6)


def test_precision_adds_up_from_the_prior():
    method = prepare("ncl", narrow, data_size=40)
    data = [few(task, 30) for task in TASKS[:2]]
    method.begin_task(TASKS[0], data[0])
    expected = Kronecker.identity((1, 5, 9), 1 / 40, torch.empty(1))
    for task in TASKS[:2]:
        new = method._task_precision(task, data[task.index])["backbone.2"]
        old_a, old_b, new_a, new_b = (
            side[0].trace() for side in (expected.inputs, expected.outputs, new.inputs, new.outputs)
        )
        pi = (old_a * new_b / (new_a * old_b)).sqrt()
        expected = Kronecker(expected.outputs + new.outputs / pi, expected.inputs + new.inputs * pi)
        method.end_task(task, data[task.index])
        torch.testing.assert_close(method.precision["backbone.2"].inputs, expected.inputs)
        torch.testing.assert_close(method.precision["backbone.2"].outputs, expected.outputs)
        assert torch.equal(method.anchor["backbone.2"][0].double(), joined(method.net.backbone[2]))


# the rest


def test_size_is_that_of_the_first_task_unless_it_is_given():
    for options, size in (({}, 20), ({"data_size": 7}, 7)):
        method = prepare("ncl", **options)
        method.begin_task(TASKS[0], few(TASKS[0], 20))
        method.end_task(TASKS[0], few(TASKS[0], 20))
        method.begin_task(TASKS[1], few(TASKS[1], 30))
        assert method.size == size


def test_a_stronger_pull_keeps_more():
    moved = []
    for strength in (0.0, 1000.0):
        method = prepare("ncl")
        learn(method, TASKS[0])
        first, method.strength = joined(method.net.backbone[1]), strength
        learn(method, TASKS[1])
        moved.append((joined(method.net.backbone[1]) - first).norm().item())
    assert moved[1] < 0.5 * moved[0]


def test_state_and_memory_are_factors_and_last_weights():
    method = prepare("ncl")
    assert method.extra_bytes() == 0
    learn(method, TASKS[0])
    assert method.extra_bytes() == 4 * (65 * 65 + 12 * 12 + 12 * 65)
    other = prepare("ncl")
    other.load_state_dict(method.state_dict())
    assert other.size == method.size > 0
    assert torch.equal(other.precision["backbone.1"].inputs, method.precision["backbone.1"].inputs)
    assert torch.equal(other.anchor["backbone.1"], method.anchor["backbone.1"])


def test_norm_scales_and_statistics_learn_with_the_first_task_only():
    method = prepare("ncl", normalised)
    learn(method, TASKS[0])
    norm = method.net.backbone[2]
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    assert (norm.weight != 1).any()
    learn(method, TASKS[1])
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())


def test_layers_that_are_too_wide_are_refused():
    net = build_network({"kind": "mlp", "hidden": [8]}, (1, 64, 64), [2])
    with pytest.raises(ValueError, match=r"at most 4096 inputs and outputs, got 4097 inputs .* of 'backbone.1'"):
        make_method("ncl", {}).build(net, TASKS[:1])


def test_a_layer_whose_factors_cannot_be_taken_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            return self.layer(self.layer(x.flatten(1)).relu())

    method = make_method("ncl", {})
    method.build(MultiHead(Twice(), 64, [2]), TASKS[:1])
    method.begin_task(TASKS[0], few(TASKS[0], 8))
    with pytest.raises(ValueError, match=r"factors of 'backbone.layer': called 2 times; use another network"):
        method.end_task(TASKS[0], few(TASKS[0], 8))


@pytest.mark.parametrize("options", [{"strength": -1.0}, {"data_size": 0}, {"weight_decay": 0.1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=rf"method\.{next(iter(options))} must be"):
        make_method("ncl", options)
