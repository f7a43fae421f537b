"""WSN: masks, the straight-through gradient, frozen weights, and old tasks that stay as they were to the last bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.methods.mask_coding import unpacked
from bitfreeze.lab.methods.wsn import Chosen, best
from bitfreeze.lab.nets import MultiHead
from bitfreeze.lab.tasks import Batch
from support.small_tasks import STREAM, TASKS, convolutional, learn, mlp, prepare

NETS = pytest.mark.parametrize("make", [mlp, convolutional])


def normalised() -> MultiHead:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU())
    return MultiHead(layers, 12, [task.classes for task in TASKS])


def some(task, count=16):
    return Batch(*STREAM.load(task).train.take(slice(count)), task)


def masks(method, task):
    return [unpacked(mask, p.shape) for mask, p in zip(method.masks[task], method.masked.values(), strict=True)]


# masks


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_mask_has_the_largest_scores_and_the_right_share_of_them(share, count):
    torch.manual_seed(0)
    scores = torch.randn(count)
    mask = best(scores, share)
    wanted = count - round((1 - share) * (count - 1))
    assert abs(wanted - share * count) <= 1
    assert set(mask.nonzero().flatten().tolist()) == set(scores.abs().argsort(descending=True)[:wanted].tolist())


@NETS
def test_each_tensor_of_each_layer_has_its_share(make):
    method = prepare("wsn", make, share=0.3)
    learn(method, TASKS[0])
    names = [name for name, _ in method.net.backbone.named_parameters()]
    assert [name.removeprefix("backbone.") for name in method.masked] == names
    for mask in masks(method, 0):
        assert abs(int(mask.sum()) - 0.3 * mask.numel()) <= 1


def test_scores_start_as_the_weights_of_torch_do():
    """U(-1, 1) / sqrt(fan_in), for biases too."""
    torch.manual_seed(0)
    net = MultiHead(nn.Sequential(nn.Flatten(), nn.Linear(100, 400)), 400, [2])
    method = make_method("wsn", {})
    method.build(net, TASKS[:1])
    for scores in method.scores:
        assert scores.abs().max() <= 0.1
        assert scores.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.1)


# gradients


def test_gradient_goes_straight_through_to_the_scores():
    torch.manual_seed(0)
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    outer = torch.randn(5, 4, dtype=torch.float64)
    chosen = Chosen.apply(weight, scores, 0.4)
    mask = best(scores, 0.4)
    assert torch.equal(chosen, weight * mask)
    chosen.backward(outer)
    for i in range(5):
        for j in range(4):
            assert weight.grad[i, j] == (outer[i, j] if mask[i, j] else 0)
            sign = 1 if scores[i, j] > 0 else -1
            assert scores.grad[i, j].item() == pytest.approx((outer * weight)[i, j].item() * sign, rel=1e-12)


def test_gradients_of_a_layer_are_those_of_the_formula():
    """By hand for the hidden layer: dL/dW = (delta^T x) m and dL/ds = (delta^T x) W sign(s)."""
    method = prepare("wsn", share=0.4)
    batch = some(TASKS[0])
    layer, head = method.net.backbone[1], method.net.heads[0]
    (w_mask, b_mask), x = [best(s, 0.4) for s in method.scores], batch.x.flatten(1)
    h = x @ (layer.weight * w_mask).T + layer.bias * b_mask
    p = (h.relu() @ head.weight.T + head.bias).softmax(1)
    delta = (p - F.one_hot(batch.y, 2)) / len(x) @ head.weight * (h > 0)
    method.loss(batch).backward()
    torch.testing.assert_close(layer.weight.grad, delta.T @ x * w_mask)
    torch.testing.assert_close(method.scores[0].grad, delta.T @ x * layer.weight * method.scores[0].sign())
    torch.testing.assert_close(layer.bias.grad, delta.sum(0) * b_mask)
    torch.testing.assert_close(method.scores[1].grad, delta.sum(0) * layer.bias * method.scores[1].sign())


@NETS
def test_gradients_of_weights_in_use_are_exactly_0_and_the_weights_stay(make):
    method = prepare("wsn", make)
    for task in TASKS[:2]:
        learn(method, task)
    method.begin_task(TASKS[2], None)
    used = [a | b for a, b in zip(masks(method, 0), masks(method, 1), strict=True)]
    before = [p.detach().clone() for p in method.masked.values()]
    optimizers = method.optimizers(TASKS[2], 0.01)
    for _ in range(5):
        method.train_batch(some(TASKS[2]), 0.0, optimizers)
        for p, taken in zip(method.masked.values(), used, strict=True):
            assert not p.grad[taken].any()
    for p, old, taken in zip(method.masked.values(), before, used, strict=True):
        assert torch.equal(p[taken], old[taken])
    assert any((p != old).any() for p, old in zip(method.masked.values(), before, strict=True))
    assert all(scores.grad[taken].any() for scores, taken in zip(method.scores, used, strict=True))


# tasks


@pytest.mark.parametrize("make", [mlp, convolutional, normalised])
def test_scores_of_old_tasks_are_bitwise_unchanged_after_later_ones(make):
    method = prepare("wsn", make)
    x, kept = STREAM.load(TASKS[0]).test.take(slice(200))[0], []
    for task in TASKS[:4]:
        learn(method, task)
        method.net.eval()
        with torch.no_grad():
            assert all(torch.equal(method.logits(x, old), scores) for old, scores in kept)
            kept.append((task, method.logits(x, task)))
    assert all(scores.std() > 0 for _, scores in kept)


def test_a_task_is_tested_with_its_own_mask():
    method = prepare("wsn")
    for task in TASKS[:2]:
        learn(method, task)
    x = some(TASKS[0]).x
    layer, head = method.net.backbone[1], method.net.heads[0]
    first, second = masks(method, 0), masks(method, 1)
    assert not torch.equal(first[0], second[0])
    h = F.linear(x.flatten(1), layer.weight * first[0], layer.bias * first[1]).relu()
    assert torch.equal(method.logits(x, TASKS[0]), head(h))


def test_the_mask_is_that_of_the_best_weights():
    """Those that validation chose: scores are part of the network, so they are restored with its weights."""
    method = prepare("wsn")
    learn(method, TASKS[0])
    assert all(torch.equal(best(s, 0.5), mask) for s, mask in zip(method.scores, masks(method, 0), strict=True))


# the rest


def test_memory_is_scores_and_a_bit_a_weight_and_huffman_takes_seven_tasks_together():
    method = prepare("wsn")
    weights = sum(p.numel() for p in method.masked.values())
    assert weights == 12 * 64 + 12
    sizes = []
    for task in TASKS:
        method.end_task(task, None)
        sizes.append(method.extra_bytes() - 4 * weights)
    assert sizes == [k * (12 * 64 // 8 + 2) for k in range(1, 6)]
    report = method.report()
    assert report["mask_bytes"] == sizes[-1]
    assert report["weights_used"] == pytest.approx(0.5)  # nothing was learned, so all five masks are the same
    assert report["huffman_bytes"] == 12 * 64 // 8 + 2 + 2 * 2**5  # two symbols, a bit an entry


def test_state_has_packed_masks_and_a_new_object_takes_them():
    method = prepare("wsn")
    for task in TASKS[:2]:
        learn(method, task)
    other = prepare("wsn")
    other.net.load_state_dict(method.net.state_dict())
    other.load_state_dict(method.state_dict())
    assert all(mask.dtype == torch.uint8 for kept in method.state_dict()["masks"].values() for mask in kept)
    x = some(TASKS[0]).x
    assert all(torch.equal(method.logits(x, task), other.logits(x, task)) for task in TASKS[:2])
    other.begin_task(TASKS[2], None)
    assert all(torch.equal(a, b) for a, b in zip(other.used, method._used(), strict=True))


def test_norm_scales_learn_with_the_first_task_only():
    method = prepare("wsn", normalised)
    scale = method.net.backbone[2].weight
    assert any(p is scale for p in method.trained(TASKS[0]))
    learn(method, TASKS[0])
    assert (scale != 1).any()
    assert not any(p is scale for p in method.trained(TASKS[1]))


def test_a_network_without_layers_is_refused():
    with pytest.raises(ValueError, match="wsn has nothing to mask"):
        make_method("wsn", {}).build(MultiHead(nn.Flatten(), 64, [2]), TASKS[:1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"share": 0.0}, r"method.share must be in \(0, 1\], got 0.0"),
        ({"share": 1.5}, r"method.share must be in \(0, 1\], got 1.5"),
        ({"momentum": 0.9}, "method.momentum must be 0, got 0.9; wsn trains with Adam"),
        ({"weight_decay": 0.1}, "method.weight_decay must be 0, got 0.1; it would move weights that are frozen"),
    ],
)
def test_options_out_of_range_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_method("wsn", options)
