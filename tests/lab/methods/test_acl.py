"""ACL and ACL-R against their equations; what only ACL-R does is in test_acl_r.py."""

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.methods.acl import overlap
from bitfreeze.lab.nets import MultiHead
from bitfreeze.lab.tasks import Batch
from support.acl_tasks import STREAM, TASKS, begin, images, learn, plain_net, prepare, same, some_batch, state

BOTH = pytest.mark.parametrize("name", ["acl", "acl_r"])


# overlap


def test_overlap_is_the_mean_squared_cosine_of_all_pairs():
    s, p = torch.randn(5, 7), torch.randn(5, 7)
    expected = sum(F.cosine_similarity(a, b, dim=0).item() ** 2 for a in s for b in p) / 25
    assert overlap(s, p).item() == pytest.approx(expected, rel=1e-4)
    for scale in (1e-3, 1.0, 1e3):
        assert 0 <= overlap(scale * torch.randn(9, 2), torch.randn(9, 2)).item() <= 1
    same_direction = torch.randn(1, 7).expand(5, 7)
    assert overlap(same_direction, 3 * same_direction).item() == pytest.approx(1, abs=1e-4)


def test_overlap_of_orthogonal_or_empty_codes_is_zero():
    codes = torch.randn(4, 6)
    left, right = codes * torch.tensor([1.0, 1, 1, 0, 0, 0]), codes * torch.tensor([0, 0, 0, 1.0, 1, 1])
    assert overlap(left, right).item() == 0
    assert overlap(torch.zeros(4, 6), codes).item() == 0


def test_overlap_takes_lengths_as_constants():
    s, p = torch.randn(4, 6, dtype=torch.float64, requires_grad=True), torch.randn(4, 6, dtype=torch.float64)
    lengths = s.detach().norm(dim=1, keepdim=True) + 1e-6, p.norm(dim=1, keepdim=True) + 1e-6
    (expected,) = torch.autograd.grad((s / lengths[0] @ (p / lengths[1]).T).pow(2).mean(), s)
    (got,) = torch.autograd.grad(overlap(s, p), s)
    torch.testing.assert_close(got, expected)
    assert (got * s).sum().abs() > 0.01  # were lengths part of the graph, moving along s would change nothing


# networks and options


def test_its_networks_do_not_depend_on_the_plain_one():
    chain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10), nn.ReLU())
    plain = MultiHead(chain, 10, [2] * 5)
    with pytest.raises(ValueError, match=r"net.shape must be the shape of one input, got None"):
        make_method("acl", {}).build(plain, TASKS)
    plain.shape = (1, 8, 8)
    net = make_method("acl", {}).build(plain, TASKS)
    assert net(torch.randn(3, 1, 8, 8), 4).shape == (3, 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"s_step": 0}, "method.s_step must be at least 1, got 0"),
        ({"adv": -0.1}, "method.adv must be at least 0, got -0.1"),
        ({"orth": -0.1}, "method.orth must be at least 0"),
        ({"adv": float("nan")}, "method.adv must be a number, got nan"),
        ({"d_lr_share": -1.0}, "method.d_lr_share must be at least 0"),
    ],
)
def test_bad_options_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        prepare(**options)


# the discriminator


@BOTH
def test_discriminator_is_made_anew_for_each_task_with_an_output_more_and_is_not_kept(name):
    method, net = prepare(name)
    for index in range(3):
        begin(method, index)
        assert method.judge[-1].out_features == index + 2  # t + 1, t counted from 1
        judge = method.judge
        begin(method, index)  # as where a run goes on in the middle of a task
        assert method.judge is judge
        method.end_task(TASKS[index], STREAM.load(TASKS[index]))
        assert method.judge is None
        assert method.state_dict()["judge"] is None
    assert not any("judge" in key for key in net.state_dict())


def test_discriminator_comes_back_with_a_checkpoint_in_the_middle_of_a_task():
    method, net = prepare()
    learn(method, net, 0)
    begin(method, 1)
    method.train_batch(some_batch(1), 0.0, method.optimizers(TASKS[1], 0.1))
    other, _ = prepare()
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    random = torch.get_rng_state()
    begin(other, 1)
    assert torch.equal(torch.get_rng_state(), random)
    assert same(state(other.judge), state(method.judge))


@pytest.mark.parametrize("scaled", [False, True])
def test_discriminator_learns_to_tell_tasks_from_noise(scaled):
    """One step against a second implementation: plain SGD with weight decay on CE(D(s), t) + CE(D(z), 0)."""
    method, net = prepare(d_scaled=scaled, adv=0.3, d_lr_share=0.5)
    method.learned = 2
    begin(method, 2)
    net.eval()
    expected = copy.deepcopy(method.judge)
    batch, before = some_batch(2), state(net)
    own, judging = method.optimizers(TASKS[2], 0.1)
    torch.manual_seed(5)
    method._train_judge([batch], judging)
    torch.manual_seed(5)
    loss = F.cross_entropy(expected(net.backbone(batch.x).detach()), torch.full((16,), 3))
    loss = loss + F.cross_entropy(expected(torch.randn(16, 16)), torch.zeros(16, dtype=torch.long))
    (loss * (0.3 if scaled else 1)).backward()
    for p in expected.parameters():
        p.data -= 0.05 * (p.grad + 0.01 * p.data)
    for a, b in zip(method.judge.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert same(state(net), before)
    assert [group["momentum"] for group in judging.param_groups + own.param_groups] == [0, 0.9]


def test_each_batch_has_s_steps_and_then_one_of_the_discriminator():
    method, _ = prepare(s_step=3)
    begin(method, 0)
    optimizers = method.optimizers(TASKS[0], 0.01)
    steps = []
    for optimizer, label in zip(optimizers, "sd", strict=True):
        optimizer.register_step_post_hook(lambda *_, label=label: steps.append(label))
    method.train_batch(some_batch(), 0.0, optimizers)
    assert "".join(steps) == "sssd"


@pytest.mark.parametrize("reverse", [True, False])
def test_shared_module_works_against_the_discriminator_only_with_reversal(reverse):
    """A step on the discriminator's verdict alone: with reversal it judges worse, without it better."""
    method, net = prepare(reverse=reverse, adv=1.0, orth=0.0, momentum=0.0, weight_decay=0.0)
    begin(method, 1)
    net.eval()
    batch = some_batch(1, 64)

    def verdict():
        return F.cross_entropy(method.judge(net.backbone(batch.x)), torch.full((64,), 2)).item()

    before, heads = verdict(), state(net.heads)
    net.zero_grad()
    (method.loss(batch) - F.cross_entropy(method.logits(batch.x, TASKS[1]), batch.y)).backward()
    with torch.no_grad():
        for p in net.backbone.parameters():
            p -= 0.1 * p.grad
    assert (verdict() > before) == reverse
    assert all(p.grad is None or not p.grad.abs().max() > 1e-6 for p in net.of_task(1))
    assert same(state(net.heads), heads)


# the loss


def test_loss_is_the_sum_of_its_three_terms_and_the_validation_criterion():
    method, net = prepare(adv=0.7, orth=0.9)
    begin(method, 1)
    net.eval()
    data = STREAM.load(TASKS[1])
    x, y = data.valid.take(slice(None))
    s, p = net.backbone(x), net.privates[1](x)
    expected = F.cross_entropy(net.heads[1](torch.cat([p, s], 1)), y)
    expected = expected + 0.7 * F.cross_entropy(method.judge(s), torch.full_like(y, 2)) + 0.9 * overlap(s, p)
    torch.testing.assert_close(method.loss(Batch(x, y, TASKS[1])), expected)
    assert method.validation_loss([(TASKS[1], data.valid)], TASKS[1], 2000) == pytest.approx(expected.item())


def test_without_adversary_and_orthogonality_it_is_ordinary_training():
    method, net = prepare(adv=0.0, orth=0.0)
    begin(method, 1)
    net.eval()
    other = copy.deepcopy(net)
    parts = [other.backbone, other.privates[1], other.heads[1]]
    ordinary = SGD([p for part in parts for p in part.parameters()], lr=0.1, momentum=0.9, weight_decay=0.01)
    own = method.optimizers(TASKS[1], 0.1)
    for _ in range(4):
        batch = some_batch(1)
        method.train_batch(batch, 0.0, own)
        ordinary.zero_grad()
        F.cross_entropy(other(batch.x, 1), batch.y).backward()
        ordinary.step()
    for (key, a), b in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=key)


# what is kept


@BOTH
def test_modules_of_other_tasks_are_bitwise_frozen_so_all_forgetting_comes_from_the_shared_one(name):
    method, net = prepare(name)
    learn(method, net, 0)
    before, scores = state(net), net.eval()(images(0), 0)
    learn(method, net, 1)
    after = state(net)
    moved = {key for key in after if not torch.equal(after[key], before[key])}
    assert {key.split(".")[0] for key in moved} == {"backbone", "privates", "heads"}
    assert all(key.startswith(("backbone.", "privates.1.", "heads.1.")) for key in moved)
    assert not torch.equal(net.eval()(images(0), 0), scores)
    net.backbone.load_state_dict({k.removeprefix("backbone."): v for k, v in before.items() if "backbone" in k})
    assert torch.equal(net.eval()(images(0), 0), scores)


def test_with_the_shared_module_frozen_after_the_first_task_nothing_is_forgotten():
    method, net = prepare()
    learn(method, net, 0)
    net.backbone.requires_grad_(False)
    scores = net.eval()(images(0), 0)
    for index in (1, 2):
        learn(method, net, index)
        assert torch.equal(net.eval()(images(0), 0), scores)


def test_optimizers_hold_only_what_is_shared_and_what_is_the_tasks_own():
    method, net = prepare(d_lr_share=0.25)
    begin(method, 2)
    own, judging = method.optimizers(TASKS[2], 0.4)
    expected = [*net.backbone.parameters(), *net.privates[2].parameters(), *net.heads[2].parameters()]
    assert {id(p) for p in own.param_groups[0]["params"]} == {id(p) for p in expected}
    assert (own.param_groups[0]["lr"], judging.param_groups[0]["lr"]) == (0.4, 0.1)
    assert (own.param_groups[0]["weight_decay"], judging.param_groups[0]["weight_decay"]) == (0.01, 0.01)


def test_extra_bytes_is_what_has_come_to_be_kept_less_the_plain_network():
    method, net = prepare()
    sizes = []
    for index in range(5):
        method.end_task(TASKS[index], None)
        sizes.append(method.extra_bytes())
    plain = sum(p.numel() * 4 for p in plain_net().parameters())
    assert sizes[-1] + plain == sum(p.numel() * 4 for p in net.parameters())
    per_task = 4 * (64 * 16 + 16 + 32 * 28 + 28 + 28 * 14 + 14 + 14 * 2 + 2)
    assert [b - a for a, b in pairwise(sizes)] == [per_task] * 4
