"""Dropout in fewer random bits: the law of torch's, and what it is fused with computes the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bitfreeze.lab.nets import dropout
from bitfreeze.lab.nets.dropout import STEPS, Dropout, PoolReLU, kept


def pictures(layout: str) -> Tensor:
    x = torch.randn(5, 3, 9, 7)
    if layout == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    return torch.randn(5, 3, 9, 14)[..., ::2] if layout == "with gaps" else x


LAYOUTS = pytest.mark.parametrize("layout", ["plain", "channels last", "with gaps"])


@LAYOUTS
def test_a_mask_is_0_or_1_in_the_layout_of_what_it_is_for(layout):
    x = pictures(layout)
    mask = kept(x, STEPS // 4)
    assert mask.shape == x.shape
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    if layout != "with gaps":
        assert mask.stride() == x.stride()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_entries_are_dropped_independently_with_the_share_asked_for(share):
    torch.manual_seed(0)
    count = 400_003  # not a multiple of four
    lost = 1 - kept(torch.empty(count), round(share * STEPS))
    deviation = (share * (1 - share) / count) ** 0.5
    assert lost.mean().item() == pytest.approx(share, abs=4 * deviation + 1 / STEPS)
    centred = lost - share
    for apart in (1, 2, 3, 4, 8):  # neighbours share a draw of 64 bits
        together = (centred[apart:] * centred[:-apart]).mean().item() / (share * (1 - share))
        assert abs(together) < 4 / count**0.5
    for place in range(4):
        assert lost[place::4].mean().item() == pytest.approx(share, abs=8 * deviation)


def test_extremes_of_the_threshold():
    x = torch.empty(100_000)
    assert kept(x, 0).all()
    assert kept(x, STEPS - 1).mean() < 1e-3
    torch.manual_seed(0)
    every = torch.empty(2_000_000)
    assert 0 < (1 - kept(every, 1)).sum() < 100  # 30 expected


@pytest.mark.parametrize("make", [Dropout, PoolReLU])
def test_a_share_close_to_all_leaves_something_to_divide_by(make):
    out = make(0.999999)(torch.ones(2, 3, 64, 64))
    assert out.isfinite().all()


def test_dropout_keeps_the_expectation_and_multiplies_gradients_by_the_same():
    torch.manual_seed(0)
    x = torch.ones(200_000, requires_grad=True)
    y = Dropout(0.2)(x)
    dropped = round(0.2 * STEPS) / STEPS
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - dropped))]
    assert y.mean().item() == pytest.approx(1, abs=0.005)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@LAYOUTS
def test_fused_with_pooling_it_gives_what_relu_dropout_and_pooling_do_one_after_another(layout, monkeypatch):
    torch.manual_seed(0)
    x = pictures(layout).requires_grad_()
    x.data[0] = -x.data[0].abs()  # a picture with nothing that ReLU lets through
    mask = (torch.rand_like(x) < 0.6).float()
    mask[1] = 0  # and one of which all is dropped
    monkeypatch.setattr(dropout, "kept", lambda given, dropped: mask.clone())
    ours = PoolReLU(0.25)(x)
    plain = F.max_pool2d(F.relu(x) * mask / 0.75, 2)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=0)
    outer = torch.randn_like(plain)
    by_ours, by_plain = (torch.autograd.grad(y, x, outer)[0] for y in (ours, plain))
    assert by_plain.any()
    torch.testing.assert_close(by_ours, by_plain, rtol=1e-6, atol=0)


@LAYOUTS
@pytest.mark.parametrize("training", [True, False])
def test_without_dropout_and_outside_of_training_nothing_is_drawn(layout, training):
    x = pictures(layout).requires_grad_()
    before = torch.get_rng_state()
    ours = PoolReLU(0.0 if training else 0.5).train(training)(x)
    assert torch.equal(Dropout(0.0 if training else 0.5).train(training)(x), x)
    assert torch.equal(torch.get_rng_state(), before)
    plain = F.max_pool2d(F.relu(x), 2)
    assert torch.equal(ours, plain)
    outer = torch.randn_like(plain)
    assert torch.equal(*(torch.autograd.grad(y, x, outer)[0] for y in (ours, plain)))


def test_the_law_of_the_fused_layer_is_that_of_torchs_own_dropout():
    torch.manual_seed(0)
    x = torch.tensor([[[[3.0, 2.0], [1.0, -4.0]]]]).expand(200_000, 1, 2, 2)
    values = PoolReLU(0.5)(x).flatten()
    plain = F.max_pool2d(F.dropout(F.relu(x), 0.5), 2).flatten()
    for value in (0.0, 2.0, 4.0, 6.0):  # of which the largest kept: 1/8, 1/8, 1/4, 1/2
        ours, theirs = ((values == value).float().mean().item(), (plain == value).float().mean().item())
        assert ours == pytest.approx(theirs, abs=0.006)
        assert ours > 0.1
