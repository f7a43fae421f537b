"""HAT against its equations, on linear and convolutional chains."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.methods.hat import compensation
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.streams import make_stream
from bitfreeze.lab.tasks import Batch, Task
from bitfreeze.lab.training import Settings, Training

TASKS = tuple(Task(k, f"task {k}", 2) for k in range(3))


def linear_net() -> MultiHead:
    return build_network({"kind": "mlp", "hidden": [12, 10]}, (1, 8, 8), [2, 2, 2])


def conv_net() -> MultiHead:
    """8x8 -> 6x6 -> 3x3 -> 2x2, with the layers between in a chain of their own."""
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.Sequential(nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2)),
        nn.Conv2d(4, 6, 2),
        nn.ReLU(),
    ]
    return MultiHead(nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 10), nn.ReLU(), nn.Dropout(0.2)), 10, [2, 2, 2])


NETS = pytest.mark.parametrize("make", [linear_net, conv_net])


def prepare(make=linear_net, **options):
    torch.manual_seed(0)
    method = make_method("hat", options)
    net = method.build(make(), TASKS)
    return method, net


def some_batch(task: int, count: int = 16) -> Batch:
    return Batch(torch.randn(count, 1, 8, 8), torch.randint(2, (count,)), TASKS[task])


def set_binary(method, *tasks: int) -> None:
    """Half of the units of each layer open, others in each task."""
    for task in tasks:
        e = method.gates.embeddings[task]
        e.data = torch.where(torch.rand(len(e), generator=torch.Generator().manual_seed(task)) < 0.5, 6.0, -6.0)


def gradients(method, batch: Batch, s: float) -> None:
    """Backward as in a step, with the gates at s."""
    method.net.train()
    method.gates.annealed = s
    method.net.zero_grad()
    method._with_penalty(method.loss(batch), batch.task).backward()


# the gates


def test_gates_act_after_relu_dropout_and_pooling_before_each_next_layer():
    method, net = prepare(conv_net)
    first, second, third = method.gates.layers
    x = torch.randn(5, 1, 8, 8)
    a, b, c = torch.split(torch.sigmoid(400 * method.gates.embeddings[1]), [4, 6, 10])
    h = F.max_pool2d(F.relu(F.conv2d(x, first.weight, first.bias)), 2) * a.reshape(1, 4, 1, 1)
    h = F.relu(F.conv2d(h, second.weight, second.bias)) * b.reshape(1, 6, 1, 1)
    h = F.relu(F.linear(h.reshape(5, 24), third.weight, third.bias)) * c
    net.eval()
    torch.testing.assert_close(net(x, 1), F.linear(h, net.heads[1].weight, net.heads[1].bias))
    assert torch.equal(net(x, 1), net(x, task=1))
    assert not torch.equal(net(x, 1), net(x, 0))


def test_open_gates_without_regulariser_are_the_plain_network():
    """t = 1, e = +6 everywhere, lam = 0, s = smax: the same scores and the same step, bit for bit."""
    method, net = prepare(lam=0.0)
    plain = make_method("ft", {"clip": 10000.0})
    torch.manual_seed(0)
    other = plain.build(linear_net(), TASKS)
    method.gates.embeddings[0].data.fill_(6.0)
    batch = some_batch(0)
    assert torch.equal(method.logits(batch.x, batch.task), plain.logits(batch.x, batch.task))
    method.begin_task(TASKS[0], None)
    method.train_batch(batch, 1.0, method.optimizers(TASKS[0], 0.1))
    plain.train_batch(batch, 1.0, plain.optimizers(TASKS[0], 0.1))
    state = net.state_dict()
    assert all(torch.equal(state[name], value) for name, value in other.state_dict().items())


def test_steepness_is_annealed_in_each_epoch_and_largest_in_evaluation():
    method, net = prepare(smax=50.0)
    net.train()
    for progress in (0.0, 0.25, 0.9, 0.0):
        method.observe(some_batch(0), progress)
        assert method.gates.s == pytest.approx(1 / 50 + (50 - 1 / 50) * progress)
    net.eval()
    assert method.gates.s == 50
    torch.testing.assert_close(method.gates.mask(1), torch.sigmoid(50 * method.gates.embeddings[1]))


def test_a_copied_network_has_gates_of_its_own():
    _, net = prepare()
    net.eval()
    other = copy.deepcopy(net)
    x = torch.randn(3, 1, 8, 8)
    before = net(x, 0)
    assert torch.equal(other(x, 0), before)
    other.gates.embeddings[0].data.fill_(-6.0)
    assert torch.equal(net(x, 0), before)
    assert torch.equal(other(x, 0), other.heads[0].bias.expand(3, 2))


# embeddings


@pytest.mark.parametrize("s", [0.02, 0.5, 3.0, 8.0])
def test_compensated_gradient_is_smax_times_the_derivative_of_sigmoid_whatever_s(s):
    """Of the regulariser, whose gradient in a is lam / units, through the method's own backward and before_step."""
    method, net = prepare(smax=50.0)
    net.double()
    method.begin_task(TASKS[0], None)
    method.used = method.used.double()
    method.net.train()
    method.gates.annealed = s
    method.penalty(TASKS[0]).backward()
    method.before_step(TASKS[0])
    e = method.gates.embeddings[0]
    p = torch.sigmoid(e.detach())
    torch.testing.assert_close(e.grad, 50 * p * (1 - p) * 0.75 / 22)


@pytest.mark.parametrize("s", [0.02, 0.5, 3.0])
def test_compensated_gradient_of_the_cross_entropy(s):
    method, net = prepare(lam=0.0)
    net.double()
    batch = Batch(torch.randn(16, 1, 8, 8, dtype=torch.float64), torch.randint(2, (16,)), TASKS[0])
    method.begin_task(TASKS[0], None)
    gradients(method, batch, s)
    method.before_step(TASKS[0])
    e = method.gates.embeddings[0]
    a = torch.sigmoid(s * e.detach()).requires_grad_()
    first, second = method.gates.layers
    h = F.relu(first(batch.x.flatten(1))) * a[:12]
    h = F.relu(F.linear(h, second.weight, second.bias)) * a[12:]
    (slope,) = torch.autograd.grad(F.cross_entropy(net.heads[0](h), batch.y), a)
    p = torch.sigmoid(e.detach())
    torch.testing.assert_close(e.grad, 400 * p * (1 - p) * slope)


def test_compensation_stays_finite_where_gates_are_shut():
    assert torch.isfinite(compensation(torch.tensor([-6.0, 0.0, 6.0]), 400.0, 400.0)).all()
    assert compensation(torch.tensor([0.0]), 0.5, 400.0).item() == 800


def test_embeddings_stay_within_their_bound():
    method, _ = prepare()
    method.begin_task(TASKS[0], None)
    method.train_batch(some_batch(0), 0.0, method.optimizers(TASKS[0], 1e4))
    e = method.gates.embeddings[0]
    assert e.abs().max() == 6


@NETS
def test_only_the_embedding_and_head_of_the_task_move(make):
    method, net = prepare(make)
    before = copy.deepcopy(net.state_dict())
    method.begin_task(TASKS[1], None)
    optimizers = method.optimizers(TASKS[1], 0.1)
    for step in range(3):
        method.train_batch(some_batch(1), step / 3, optimizers)
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert {name for name in moved if "backbone" not in name} == {
        "gates.embeddings.1",
        "heads.1.weight",
        "heads.1.bias",
    }
    assert any("backbone" in name for name in moved)
    held = sum(p.numel() for p in optimizers[0].param_groups[0]["params"])
    own = (*net.backbone.parameters(), *net.heads[1].parameters(), method.gates.embeddings[1])
    assert held == sum(p.numel() for p in own)


# the regulariser


def test_regulariser_of_the_first_task_is_the_mean_of_all_gates():
    method, _ = prepare()
    method.begin_task(TASKS[0], None)
    assert method.penalty(TASKS[0]).item() == pytest.approx(0.75 * method.gates.mask(0).mean().item())


def test_regulariser_counts_only_units_that_were_free_over_all_layers_jointly():
    method, _ = prepare(lam=2.0)
    set_binary(method, 0)
    method.begin_task(TASKS[1], None)
    free = [u for u in range(22) if method.gates.embeddings[0][u] < 0]
    share = sum(method.gates.mask(1)[u].item() for u in free) / len(free)
    assert 0 < len(free) < 22
    assert method.penalty(TASKS[1]).item() == pytest.approx(2 * share)


def test_regulariser_is_zero_if_all_gates_were_open_before():
    method, _ = prepare()
    set_binary(method, 0)
    method.gates.embeddings[1].data = method.gates.embeddings[0].data.clone()
    method.begin_task(TASKS[1], None)
    assert method.penalty(TASKS[1]).item() == 0


def test_regulariser_is_zero_and_not_nan_when_no_unit_is_left():
    method, _ = prepare()
    method.gates.embeddings[0].data.fill_(6.0)
    method.begin_task(TASKS[1], None)
    penalty = method.penalty(TASKS[1])
    penalty.backward()
    assert penalty.item() == 0
    assert torch.equal(method.gates.embeddings[1].grad, torch.zeros(22))


def test_validation_criterion_has_the_regulariser_at_smax():
    method, net = prepare()
    stream = make_stream("digits5")
    data = stream.load(stream.tasks[0])
    method.begin_task(TASKS[0], data)
    method.observe(some_batch(0), 0.1)
    net.eval()
    scores = method.logits(data.valid.take(slice(None))[0], TASKS[0])
    expected = F.cross_entropy(scores, data.valid.y) + 0.75 * torch.sigmoid(400 * method.gates.embeddings[0]).mean()
    assert method.validation_loss([(TASKS[0], data.valid)], TASKS[0], 100) == pytest.approx(expected.item(), rel=1e-5)


# units in use


def test_cumulative_mask_is_the_largest_so_far_and_never_falls():
    method, _ = prepare(smax=2.0)
    masks = [torch.sigmoid(2.0 * e.detach()) for e in method.gates.embeddings]
    assert torch.equal(method.gates.used(0), torch.zeros(22))
    expected = torch.zeros(22)
    for task, mask in enumerate(masks):
        expected = torch.maximum(expected, mask)
        assert torch.equal(method.gates.used(task + 1), expected)


@NETS
def test_gradients_are_let_through_as_the_equation_says_entry_by_entry(make):
    method, net = prepare(make, smax=2.0)  # soft gates, so that min is seen
    method.begin_task(TASKS[2], None)
    gradients(method, some_batch(2), 1.0)
    before = {name: p.grad.clone() for name, p in net.backbone.named_parameters()}
    method.before_step(TASKS[2])
    used = torch.split(method.gates.used(2), method.gates.units)
    owners = {id(layer): name for name, layer in net.backbone.named_modules()}
    for index, layer in enumerate(method.gates.layers):
        name = owners[id(layer)]
        expected = before[f"{name}.weight"].clone()
        for i in range(expected.shape[0]):
            for j in range(expected.shape[1]):
                taken = used[index][i]
                if index > 0:
                    below = used[index - 1]
                    taken = min(taken, below[j // (expected.shape[1] // len(below))])
                expected[i, j] *= 1 - taken
        torch.testing.assert_close(layer.weight.grad, expected)
        torch.testing.assert_close(layer.bias.grad, before[f"{name}.bias"] * (1 - used[index]))


@NETS
def test_with_binary_masks_gradients_between_units_in_use_are_exactly_zero(make):
    method, _ = prepare(make)
    set_binary(method, 0)
    method.begin_task(TASKS[1], None)
    gradients(method, some_batch(1), 1.0)
    method.before_step(TASKS[1])
    used = [mask > 0.5 for mask in torch.split(method.gates.used(1), method.gates.units)]
    below = None
    for layer, above in zip(method.gates.layers, used, strict=True):
        rows = layer.weight.grad[above]
        inside = rows if below is None else rows[:, below.repeat_interleave(rows.shape[1] // len(below))]
        assert inside.numel() > 0
        assert not inside.any()
        assert not layer.bias.grad[above].any()
        assert layer.weight.grad[~above].any()
        below = above


@NETS
def test_with_binary_masks_scores_of_old_tasks_are_bitwise_unchanged_after_later_ones(make):
    method, net = prepare(make)
    stream = make_stream("digits5")
    data = [stream.load(task) for task in stream.tasks[:3]]
    x = data[0].test.take(slice(None))[0]
    kept = []
    for task in TASKS:
        for _ in Training(method, net, task, data[task.index], Settings(lr=0.1, epochs=2), seed=0).epochs():
            pass
        set_binary(method, task.index)
        method.end_task(task, data[task.index])
        net.eval()
        assert all(torch.equal(method.logits(x, old), scores) for old, scores in kept)
        kept.append((task, method.logits(x, task)))
    assert all(scores.std() > 0 for _, scores in kept)


def test_gradients_are_masked_and_compensated_before_they_are_clipped():
    """So the step has the clipped norm in all; masked afterwards it would be shorter."""
    method, net = prepare(clip=0.01)
    set_binary(method, 0)
    method.begin_task(TASKS[1], None)
    before = {name: p.detach().double().clone() for name, p in net.named_parameters()}
    method.train_batch(some_batch(1), 0.3, method.optimizers(TASKS[1], 1.0))
    moved = [(p.detach() - before[name]).square().sum().item() for name, p in net.named_parameters()]
    assert math.sqrt(sum(moved)) == pytest.approx(0.01, rel=1e-3)


# the rest


def test_state_is_the_embeddings_of_tasks_learned():
    method, net = prepare()
    assert [name for name in net.state_dict() if "gates" in name] == [f"gates.embeddings.{k}" for k in range(3)]
    sizes = []
    for task in TASKS:
        method.end_task(task, None)
        sizes.append(method.extra_bytes())
    assert sizes == [4 * 22, 2 * 4 * 22, 3 * 4 * 22]
    assert method.report() == {"units_used": pytest.approx(method.gates.used(3).mean().item())}


class Residual(nn.Module):
    def forward(self, x):
        return x


class Shortcut(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def tied() -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    layers[2].weight = layers[0].weight
    return layers


@pytest.mark.parametrize(
    ("backbone", "sentence"),
    [
        (Residual(), "a backbone that is an nn.Sequential, got a Residual; use another network"),
        (nn.Sequential(nn.Linear(4, 4), Residual()), "with a Residual, which does not keep units apart"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "with a BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, elementwise_affine=False)), "with a LayerNorm"),
        (nn.Sequential(nn.Conv2d(4, 4, 1, groups=2)), "grouped convolution"),
        (nn.Sequential(*[nn.Linear(4, 4)] * 2), "used twice"),
        (tied(), "used twice"),
        (Shortcut(nn.Linear(4, 4)), "nn.Sequential, got a Shortcut"),
        (nn.Sequential(nn.Linear(4, 4), Shortcut(nn.Linear(4, 4))), "nn.Sequential, got a Shortcut"),
        (nn.Sequential(nn.Flatten()), "nothing to gate"),
    ],
)
def test_networks_that_it_cannot_do_are_refused(backbone, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_method("hat", {}).build(MultiHead(backbone, 4, [2]), TASKS[:1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"momentum": 0.9}, "method.momentum must be 0, got 0.9; hat masks gradients"),
        ({"weight_decay": 0.1}, "method.weight_decay must be 0, got 0.1; hat masks gradients"),
        ({"smax": 0.5}, "method.smax must be at least 1, got 0.5"),
        ({"lam": -1.0}, "method.lam must be at least 0, got -1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        prepare(**options)
