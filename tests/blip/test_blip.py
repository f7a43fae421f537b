"""Three lines around anyone's loop: attach, clamp, consolidate."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from bitfreeze import BLIP
from bitfreeze.blip.attachment import _everywhere
from support.protected_nets import (
    OTHER_WEIGHTS,
    RULES,
    Net,
    assert_inside,
    entries_at_an_end,
    make_task,
    protected,
    shift,
    train,
    train_sgd,
    watched,
)

OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=1.0),
    "momentum": lambda p: SGD(p, lr=0.5, momentum=0.9, nesterov=True),
    "adam": lambda p: Adam(p, lr=0.2),
    "adamw with decay": lambda p: AdamW(p, lr=0.2, weight_decay=0.5),
    "foreach": lambda p: AdamW(p, lr=0.2, foreach=True),
    "fused": lambda p: Adam(p, lr=0.2, fused=True),
    "fused sgd": lambda p: SGD(p, lr=1.0, fused=True),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=1.0, max_iter=5),
}


class Wrapped:
    """As Accelerate and others do it."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def attachments() -> int:
    """How many objects clamp after the steps of all optimizers."""
    gc.collect()
    return len(_everywhere)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("rules", ["strict", "following", "released"])
def test_after_every_step_every_parameter_is_in_its_interval(make, rules: str) -> None:
    model = Net()
    blip = BLIP(model, budget=0.3, rules=RULES[rules])
    blip.attach()
    for task in range(3):
        optimizer = make(model.parameters())  # anew for each task
        train(model, make_task(task), optimizer, steps=4, after_step=lambda: assert_inside(blip))
        if task:
            assert entries_at_an_end(blip) > 0
        blip.consolidate([make_task(task)])
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@OTHER_WEIGHTS
def test_an_optimizer_of_the_heads_alone_does_not_touch_the_backbone() -> None:
    model, blip = protected()
    shift(model.backbone)
    edited = [parameter.clone() for parameter in model.backbone.parameters()]
    attachment = blip.attach()
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter.fill_(1e6)
    train(model, make_task(1), SGD(model.heads.parameters(), lr=0.1), steps=1)
    assert attachment.steps == 1
    assert all(torch.equal(now, then) for now, then in zip(model.backbone.parameters(), edited, strict=True))
    assert max(parameter.abs().max() for parameter in model.heads.parameters()) < 100


def test_unwatched_parameters_are_never_clamped_and_their_steps_do_not_count() -> None:
    model = Net()
    blip = BLIP(model, watch=model.backbone)
    attachment = blip.attach()
    train_sgd(model, 0)
    blip.consolidate([make_task(0)])
    with torch.no_grad():
        model.heads[0].weight.fill_(1e6)
    optimizer = SGD(model.heads.parameters(), lr=0.0)
    train(model, make_task(0), optimizer, steps=3)
    assert attachment.steps == 0
    assert (model.heads[0].weight == 1e6).all()


# attaching


@pytest.mark.parametrize("wrap", [lambda o: o, Wrapped, lambda o: Wrapped(Wrapped(o))], ids=["plain", "one", "two"])
def test_attach_to_one_optimizer_only(wrap) -> None:
    model = Net()
    blip = BLIP(model)
    mine, other = SGD(model.parameters(), lr=0.0), SGD(model.parameters(), lr=0.0)
    before = attachments()
    blip.attach(wrap(mine))
    assert attachments() == before
    shift(model)
    train(model, make_task(0), other, steps=1)
    assert model.heads[0].bias.min() > 90
    train(model, make_task(0), mine, steps=1)
    assert_inside(blip)


@OTHER_WEIGHTS
def test_a_removed_attachment_clamps_no_more() -> None:
    model, blip = protected()
    handle, count = blip.attach(), attachments()
    handle.remove()
    assert attachments() == count - 1
    shift(model)
    train_sgd(model, 1, rate=0.0, steps=1)
    assert model.heads[0].bias.min() > 90
    with blip.attach():
        train_sgd(model, 1, rate=0.0, steps=1)
        assert_inside(blip)
    assert attachments() == count - 1


def test_attaching_twice_is_attaching_once() -> None:
    model = Net()
    blip, optimizer = BLIP(model), SGD(model.parameters(), lr=0.1)
    first, own = blip.attach(), blip.attach(optimizer)
    count = attachments()
    assert blip.attach() is first
    assert blip.attach(optimizer) is own
    assert blip.attach(Wrapped(optimizer)) is own
    assert attachments() == count
    assert len(optimizer._optimizer_step_post_hooks) == 1
    first.remove()
    assert blip.attach() is not first


def test_a_with_block_ends_no_attachment_that_was_there_before() -> None:
    model = Net()
    blip = BLIP(model)
    first = blip.attach()
    with blip.attach(), blip.attach():
        pass
    assert first.active
    shift(model)
    train_sgd(model, 0, rate=0.0, steps=1)
    assert_inside(blip)
    first.remove()
    assert not first.active


@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 0), (0, 1), (2, 2)])
def test_a_deleted_blip_is_collected_and_its_hooks_go(before: int, after: int) -> None:
    """Whatever other BLIPs were attached before it and after it."""
    count = attachments()
    bystanders = [BLIP(Net()) for _ in range(before + after)]
    for bystander in bystanders[:before]:
        bystander.attach()
    model, blip = protected()
    for bystander in bystanders[before:]:
        bystander.attach()
    alive = weakref.ref(blip)
    del blip
    assert alive() is None  # at once, not only when the garbage collector comes
    with pytest.warns(UserWarning, match="whose BLIP is gone"):
        train_sgd(model, 2, steps=2)
    assert attachments() == count + before + after


def test_torchs_hooks_do_not_pile_up() -> None:
    blip = BLIP(Net())
    blip.attach()
    count = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
    for _ in range(5):
        protected()
    train_sgd(blip.model, 0)
    assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == count


def test_a_deleted_blip_leaves_its_own_optimizer_usable() -> None:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    blip = BLIP(model)
    blip.attach(optimizer)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    alive = weakref.ref(blip)
    del blip
    assert alive() is None
    train(model, make_task(0), optimizer, steps=3)
    assert len(calls) == 3


@OTHER_WEIGHTS
def test_two_models_with_a_blip_each() -> None:
    (first, one), (second, two) = protected(seed=1), protected(seed=2)
    shift(second)
    train_sgd(first, 1, rate=10.0)
    assert_inside(one)
    assert second.heads[0].bias.min() > 90
    train_sgd(second, 1, rate=10.0)
    assert_inside(two)
    assert_inside(one)


@OTHER_WEIGHTS
def test_one_optimizer_over_two_models() -> None:
    (first, one), (second, two) = protected(seed=1), protected(seed=2)
    shift(first)
    shift(second)
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.1)
    train(first, make_task(1), optimizer, steps=1, forward=lambda x: first(x) + second(x))
    assert_inside(one)
    assert_inside(two)


@pytest.mark.parametrize("rules", RULES)
def test_clamp_twice_is_clamp_once(rules: str) -> None:
    model, blip = protected(rules=RULES[rules])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    blip.clamp_()
    assert_inside(blip)
    once = {name: value.clone() for name, value in watched(blip).items()}
    blip.clamp_()
    assert all(torch.equal(value, once[name]) for name, value in watched(blip).items())


def test_a_loop_without_a_torch_optimizer() -> None:
    model = Net()
    blip = BLIP(model, budget=0.3)
    for task in range(3):
        x, y = make_task(task)
        for _ in range(3):
            loss = nn.functional.cross_entropy(model(x), y)
            parameters = [p for p in model.parameters() if p.requires_grad]
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        parameter.sub_(2 * gradient)
            blip.clamp_()
            assert_inside(blip)
        blip.consolidate([(x, y)])
