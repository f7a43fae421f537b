"""ACL-R: what is kept of earlier tasks, and how it is replayed."""

import copy

import pytest
import torch
import torch.nn.functional as F

from bitfreeze.lab.methods.acl import overlap
from bitfreeze.lab.tasks import Batch
from support.acl_tasks import STREAM, TASKS, begin, learn, prepare, same, some_batch, state


def test_replay_of_nothing_is_acl():
    results = []
    for name, options in (("acl", {}), ("acl_r", {"replay": 0})):
        method, net = prepare(name, **options)
        for index in range(2):
            learn(method, net, index)
        results.append(state(net))
        assert method.buffer_bytes() == 0
    assert same(*results)


@pytest.mark.parametrize("replay", [1, 3])
def test_buffer_has_so_many_images_of_each_class_seen_with_true_labels(replay):
    method, net = prepare("acl_r", replay=replay)
    for index in range(3):
        begin(method, index)
        assert index not in method.kept  # never the task that is being learned
        learn(method, net, index)
        assert sum(len(split) for split in method.kept.values()) == replay * 2 * (index + 1)
        assert method.buffer_bytes() == replay * 2 * (index + 1) * (64 + 8)
    for index, split in method.kept.items():
        train = STREAM.load(TASKS[index]).train
        known = {bytes(x.flatten().tolist()): int(y) for x, y in zip(train.x, train.y, strict=True)}
        assert all(known[bytes(x.flatten().tolist())] == y for x, y in zip(split.x, split.y.tolist(), strict=True))
        assert split.y.bincount().tolist() == [replay, replay]


def test_each_kept_image_is_seen_once_an_epoch_with_its_own_task_and_label():
    method, net = prepare("acl_r", replay=3)
    for index in (0, 1):
        learn(method, net, index)
    begin(method, 2)
    size = len(STREAM.load(TASKS[2]).train)
    orders = []
    for _ in range(2):
        seen = [
            (b.task.index, int(y), x.flatten().tolist())
            for start in range(0, size, 32)
            for b in method.replayed(some_batch(2, min(32, size - start)), start / size)
            for x, y in zip(b.x, b.y, strict=True)
        ]
        expected = [
            (index, int(y), x.flatten().tolist())
            for index, split in method.kept.items()
            for x, y in zip(*split.take(slice(None)), strict=True)
        ]
        assert sorted(seen) == sorted(expected)
        orders.append(seen)
    assert orders[0] != orders[1]


def test_replayed_images_teach_the_shared_module_through_their_own_tasks_modules():
    method, net = prepare("acl_r", adv=0.3)
    learn(method, net, 0)
    begin(method, 1)
    net.eval()
    batch = Batch(*method.kept[0].take(slice(None)), TASKS[0])
    s, p = net.backbone(batch.x), net.privates[0](batch.x)
    expected = F.cross_entropy(net.heads[0](torch.cat([p, s], 1)), batch.y) + 0.1 * overlap(s, p)
    expected = expected + 0.3 * F.cross_entropy(method.judge(s), torch.tensor([1, 1]))
    net.zero_grad()
    loss = method.loss(batch)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is None for p in net.of_task(0))
    assert all(p.grad.any() for p in net.backbone.parameters())


def test_replay_moves_the_shared_module_as_one_batch_with_the_rest():
    method, net = prepare("acl_r", replay=2, adv=0.0, orth=0.0)
    learn(method, net, 0)
    begin(method, 1)
    net.eval()
    method.train_size = 16  # so that all that is kept goes with one batch
    batch, other = some_batch(1), copy.deepcopy(net)
    old = method.kept[0].take(slice(None))
    method.train_batch(batch, 0.0, method.optimizers(TASKS[1], 0.1))
    losses = [F.cross_entropy(other(x, k), y, reduction="none") for x, y, k in ((batch.x, batch.y, 1), (*old, 0))]
    torch.cat(losses).mean().backward()
    for a, b in zip(net.backbone.parameters(), other.backbone.parameters(), strict=True):
        torch.testing.assert_close(a, b.detach() - 0.1 * (b.grad + 0.01 * b.detach()))


def test_negative_replay_is_refused():
    with pytest.raises(ValueError, match=r"method.replay must be at least 0, got -1"):
        prepare("acl_r", replay=-1)
