"""What practitioners do against forgetting: L2 to the start, KL to the base, averaging, LoRA, replay, a probe."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab.methods.kl import divergence
from bitfreeze.lab.methods.lora import LowRank
from bitfreeze.lab.tasks import Batch
from support.small_tasks import STREAM, TASKS, convolutional, learn, mlp, prepare, train


def backbone(method):
    return {name: value.detach().clone() for name, value in method.net.backbone.named_parameters()}


def distance(method, start):
    return sum((value - start[name]).square().sum() for name, value in method.net.backbone.named_parameters())


def batch_of(task, count=20):
    return Batch(*STREAM.load(task).train.take(slice(0, count)), task)


# L2 to the start


def test_the_pull_is_half_the_squared_distance_of_the_backbone_to_the_start():
    method = prepare("l2", strength=0.3)
    start = backbone(method)
    assert method.penalty(TASKS[0]).item() == 0
    with torch.no_grad():
        for value in method.net.parameters():
            value += torch.randn_like(value)
    assert method.penalty(TASKS[3]).item() == pytest.approx(0.15 * distance(method, start).item(), rel=1e-5)


def test_a_stronger_pull_stays_nearer():
    apart = []
    for strength in (0.0, 0.1, 1.0):
        method = prepare("l2", strength=strength)
        start = backbone(method)
        for task in TASKS[:2]:
            learn(method, task)
        apart.append(distance(method, start).item())
    assert apart[0] > 1.2 * apart[1]
    assert apart[1] > 2 * apart[2]


# KL to the base


def test_divergence_is_the_sum_of_p_log_p_over_q():
    torch.manual_seed(0)
    old, new = torch.randn(2, 4, 3, 7)
    p, q = old.softmax(-1), new.softmax(-1)
    assert divergence(old, new).item() == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), rel=1e-5)
    assert divergence(old, old).item() == pytest.approx(0, abs=1e-6)


def test_the_loss_of_kl_is_that_of_plain_training_at_the_start_and_more_later():
    method, task = prepare("kl", strength=2.0), TASKS[0]
    base, batch = copy.deepcopy(method.net), batch_of(TASKS[0])
    plain = F.cross_entropy(base(batch.x, 0), batch.y)
    assert method.loss(batch).item() == pytest.approx(plain.item(), rel=1e-6)
    learn(method, task)
    new = method.net(batch.x, 0)
    old = method.net.heads[0](base.backbone(batch.x))
    expected = F.cross_entropy(new, batch.y) + 2 * divergence(old, new)
    assert method.loss(batch).item() == pytest.approx(expected.item(), rel=1e-5)


# averaging with the base


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_backbone_is_averaged_with_the_start_and_heads_are_left(share):
    method = prepare("wise", make_net=convolutional, share=share)
    start = backbone(method)
    data = train(method, TASKS[0])
    trained, head = backbone(method), method.net.heads[0].weight.clone()
    method.end_task(TASKS[0], data)
    for name, value in backbone(method).items():
        torch.testing.assert_close(value, (1 - share) * start[name] + share * trained[name])
    assert torch.equal(method.net.heads[0].weight, head)


def normed():
    net = mlp()
    net.backbone.append(nn.BatchNorm1d(12))
    return net


def test_running_statistics_are_averaged_too():
    method = prepare("wise", make_net=normed, share=0.25)
    data = train(method, TASKS[0])
    norm = method.net.backbone[-1]
    before, count = norm.running_mean.clone(), norm.num_batches_tracked.clone()
    method.end_task(TASKS[0], data)
    torch.testing.assert_close(norm.running_mean, 0.25 * before)  # the first mean is 0
    assert torch.equal(norm.num_batches_tracked, count)


# LoRA


def test_an_adapter_begins_as_the_layer_and_is_merged_exactly():
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 5), torch.randn(3, 6)
    adapter = LowRank(layer, rank=2, scale=1.5)
    assert torch.equal(adapter(x), layer(x))
    with torch.no_grad():
        adapter.up.normal_()
    weight = layer.weight.detach() + 1.5 * adapter.up.detach() @ adapter.down.detach()
    torch.testing.assert_close(adapter(x), F.linear(x, weight, layer.bias))
    expected = adapter(x).detach()
    adapter.merge()
    torch.testing.assert_close(adapter(x), expected)
    torch.testing.assert_close(adapter.layer.weight, weight)
    assert not adapter.up.any()


def test_only_adapters_and_the_task_s_head_are_trained_and_the_change_has_low_rank():
    method = prepare("lora", rank=2)
    before = copy.deepcopy(method.net.backbone[1].layer)
    trained = {id(value) for value in method.trained(TASKS[1])}
    names = {name for name, value in method.net.named_parameters() if id(value) in trained}
    assert names == {"heads.1.weight", "heads.1.bias", "backbone.1.down", "backbone.1.up"}
    learn(method, TASKS[0])
    change = method.net.backbone[1].layer.weight - before.weight
    values = torch.linalg.svdvals(change)
    assert values[1] > 1e-4 > 100 * values[2]
    assert torch.equal(method.net.backbone[1].layer.bias, before.bias)


def test_a_backbone_without_linear_layers_is_refused():
    def only_convolutions():
        net = convolutional()
        net.backbone = net.backbone[:5]
        return net

    with pytest.raises(ValueError, match="lora needs a backbone with linear layers"):
        prepare("lora", make_net=only_convolutions)


# a share of replay


def test_a_share_of_a_step_s_samples_is_replayed(monkeypatch):
    method = prepare("er", share=0.25)
    learn(method, TASKS[0])
    steps = []
    monkeypatch.setattr(method, "step", lambda batches, _: steps.append(batches) or torch.tensor(0.0))
    batch = batch_of(TASKS[1], 32)
    for _ in range(300):
        method.train_batch(batch, 0.0, [])
    sizes = [[(part.task.index, len(part.y)) for part in parts] for parts in steps]
    assert all(sum(count for _, count in parts) == 32 and parts[0][0] == 1 for parts in sizes)
    replayed = sum(count for parts in sizes for index, count in parts if index == 0)
    assert 0.22 < replayed / (300 * 32) < 0.28


def test_new_samples_are_never_all_replaced():
    method = prepare("er", share=0.99)
    learn(method, TASKS[0])
    seen = []
    method.step = lambda batches, _: seen.append(batches[0]) or torch.tensor(0.0)
    for _ in range(50):
        method.train_batch(replace(batch_of(TASKS[1], 2)), 0.0, [])
    assert min(len(batch.y) for batch in seen) == 1


# a linear probe


def test_a_probe_never_moves_the_backbone():
    method = prepare("ft_fix", probe=True)
    start, heads = backbone(method), copy.deepcopy(method.net.heads)
    learn(method, TASKS[0])
    assert all(torch.equal(value, start[name]) for name, value in backbone(method).items())
    assert not torch.equal(method.net.heads[0].weight, heads[0].weight)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("l2", {"strength": -1.0}, r"method.strength must be at least 0, got -1.0"),
        ("kl", {"strength": -1.0}, r"method.strength must be at least 0, got -1.0"),
        ("wise", {"share": 1.5}, r"method.share must be from 0 to 1, got 1.5"),
        ("lora", {"rank": 0}, r"method.rank must be at least 1, got 0"),
        ("er", {"share": 1.0}, r"method.share must be in \[0, 1\), or none, got 1.0"),
    ],
)
def test_options_that_make_no_sense_are_refused(name, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        prepare(name, **options)


def test_norms_see_new_and_replayed_samples_together():
    """Their running mean moves to that of all samples, and the loss is the mean over all of them, by hand."""
    method = prepare("er", share=0.25, make_net=normed)
    learn(method, TASKS[0])
    method.net.train()
    norm = method.net.backbone[-1]
    norm.reset_running_stats()
    new, old = batch_of(TASKS[1], 6), batch_of(TASKS[0], 2)
    seen = []
    norm.register_forward_hook(lambda module, args, output: seen.append(args[0].detach()))
    loss = method._mean_loss([new, old])
    (x,) = seen
    assert len(x) == 8
    torch.testing.assert_close(norm.running_mean, norm.momentum * x.mean(0))
    norm.reset_running_stats()
    features = method.net.features(torch.cat([new.x, old.x]), 1)
    losses = [
        F.cross_entropy(method.net.scores(row[None], part.task.index), label[None])
        for part, rows in ((new, features[:6]), (old, features[6:]))
        for row, label in zip(rows, part.y, strict=True)
    ]
    torch.testing.assert_close(loss, torch.stack(losses).mean())
