"""Levels: mean inputs against loops over windows, the projection against its defining property, and what it is for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bitfreeze import BLIP, Rules
from bitfreeze.blip.levels import Levels
from bitfreeze.model.layers import rows
from support.small_tasks import TASKS, convolutional, flat, learn, mlp, prepare, train


def measured(options=(), make_net=convolutional):
    """BLIP with levels after one task."""
    method = prepare("blip", make_net, rules="strict", levels=True, budget=0.1, **dict(options))
    learn(method, TASKS[0])
    return method


def held_by(method):
    """The levels of a method."""
    return next(guard for guard in method.blip._guards if isinstance(guard, Levels))


def windows(layer, x):
    """Every window that a convolution sees, by loops."""
    (kernel, _), (stride, _), (padding, _), (gap, _) = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    x, reach = np.pad(x.numpy(), ((0, 0), (0, 0), (padding, padding), (padding, padding))), gap * (kernel - 1) + 1
    starts = range(0, x.shape[2] - reach + 1, stride)
    seen = [x[:, :, i : i + reach : gap, j : j + reach : gap].reshape(len(x), -1) for i in starts for j in starts]
    return np.stack(seen)


def levels_of(model):
    """Levels of a model, after a task."""
    blip = BLIP(model, rules=replace(Rules.following(), levels=True))
    return blip, blip._guards[0]


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (3, 2, 1), (2, 1, 2)])
def test_the_mean_input_of_a_convolution_is_over_samples_and_windows(stride, padding, dilation):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3, stride=stride, padding=padding, dilation=dilation)
    model = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(2))
    batches = [torch.randn(size, 3, 9, 9) for size in (5, 2)]
    model(batches[0])
    blip, levels = levels_of(model)
    blip.consolidate(batches)
    truth = np.concatenate([windows(layer, x) for x in batches], axis=1).mean((0, 1))
    np.testing.assert_allclose(levels.means["0.weight"].numpy(), truth, atol=1e-6)


def test_the_mean_input_of_a_linear_layer_is_over_samples_and_positions():
    torch.manual_seed(0)
    blip, levels = levels_of(nn.Linear(5, 2))
    x = torch.randn(4, 7, 5)
    blip.consolidate([x])
    torch.testing.assert_close(levels.means["weight"], x.mean((0, 1)))


def test_a_layer_that_nothing_goes_through_has_no_mean_input():
    model = nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 2)])
    blip, levels = levels_of(model)
    blip.consolidate([torch.randn(4, 5)], model[0])
    assert set(levels.means) == {"0.weight"}


def test_a_network_without_biases_is_refused():
    with pytest.raises(ValueError, match="got a model without one; leave levels out"):
        levels_of(nn.Sequential(nn.Linear(5, 2, bias=False), nn.Conv2d(3, 4, 3, bias=False)))


def test_the_mean_is_that_of_the_means_of_all_tasks():
    method, seen = prepare("blip", mlp, rules="strict", levels=True, budget=0.1), []
    for task in TASKS[:3]:
        data = train(method, task)
        method.end_task(task, data)
        x, _ = data.train.take(slice(None))
        seen.append(x.flatten(1).mean(0))
        torch.testing.assert_close(next(iter(held_by(method).means.values())), torch.stack(seen).mean(0))


def test_weights_go_to_the_closest_point_at_which_levels_hold():
    method = measured()
    torch.manual_seed(1)
    held = held_by(method)
    for name in held.means:
        layer = held.intervals.states[name].slot.module
        mean, level, radius = (kept[name].double() for kept in (held.means, held.levels, held.radii))
        before = rows(layer.weight).double().clone()
        with torch.no_grad():
            layer.weight += 0.2 * radius.max().item() / mean.norm().item() * torch.randn_like(layer.weight)
        moved = rows(layer.weight).double().clone()
        assert ((before @ mean - level).abs() < 1e-6).all()
        held.hold_()
        found = rows(layer.weight).double()
        assert ((found @ mean - level).abs() <= radius + 1e-6).all()
        for other in (before, before + 0.5 * (found - before)):  # both hold: neither is nearer to where weights were
            assert ((other - moved).norm(dim=1) >= (found - moved).norm(dim=1) - 1e-9).all()
        within = (moved @ mean - level).abs() <= radius
        assert within.any()
        assert not within.all()
        assert torch.equal(found[within], moved[within])
        along = torch.outer((found - moved) @ mean, mean) / mean.square().sum()
        torch.testing.assert_close(found - moved, along, rtol=0, atol=1e-6)


def test_without_it_units_are_shifted_by_more_than_their_bias_may():
    def largest_shift(levels: bool) -> float:
        """Of a unit, by the weights that the second task left, in radii of its bias."""
        method = prepare("blip", mlp, rules="strict", levels=True, budget=0.1)
        learn(method, TASKS[0])
        held = held_by(method)
        if not levels:
            method.blip._guards.remove(held)
        train(method, TASKS[1])
        name = next(iter(held.means))
        layer = held.intervals.states[name].slot.module
        return ((rows(layer.weight) @ held.means[name] - held.levels[name]).abs() / held.radii[name]).max().item()

    assert largest_shift(levels=False) > 2
    assert largest_shift(levels=True) < 1.1  # clamping after it may move a level again, by a little


def test_what_is_kept_goes_into_a_new_object_and_training_goes_on_alike():
    method = measured()
    other = prepare("blip", convolutional, rules="strict", levels=True, budget=0.1)
    other.net.load_state_dict(method.net.state_dict())
    other.load_state_dict(method.state_dict())
    for one in (method, other):
        torch.manual_seed(5)
        learn(one, TASKS[1])
    assert torch.equal(flat(method.net), flat(other.net))
    assert method.extra_bytes() == other.extra_bytes() > held_by(method).intervals.nbytes(cache=False)


def test_layers_without_a_bias_are_left_alone():
    layers = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Conv2d(2, 2, 3, groups=2), nn.ReLU(), nn.Linear(3, 2))
    _, levels = levels_of(layers)
    assert list(levels._layers(levels.intervals.current())) == ["3.weight"]


def test_straight_through_rules_are_refused():
    with pytest.raises(ValueError, match="levels need weights that are not rounded"):
        prepare("blip", levels=True, rules="text_straight_through")
