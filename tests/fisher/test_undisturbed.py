"""After an estimate, or one that failed half way, everything is as it was."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from bitfreeze.fisher import estimate
from support.networks import WIDTH, Sequence, flattened, inputs, network, sequences, straight
from support.truth import randomise, unchanged

N = 8


class Noisy(nn.Module):
    """Draws from every source of randomness; raises in each call once as many are over as ``fails_after`` says."""

    def __init__(self, inner, fails_after=float("inf")):
        super().__init__()
        self.inner, self.fails_after, self.calls = inner, fails_after, 0

    def forward(self, x):
        self.calls += 1
        random.random()
        np.random.rand()  # noqa: NPY002 - what loaders and augmentations use
        torch.rand(())
        if self.calls > self.fails_after:
            raise ArithmeticError("half way")
        return self.inner(x)


def mixed_modes(around=straight):
    """A model of which parts are in eval mode and parts are frozen."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(3), nn.Dropout(), Sequence(around))
    randomise(model).double().train()
    model[1].eval()
    model[3].layer.requires_grad_(False)
    model[0].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize("labels", ["sample", "exact"])
@pytest.mark.parametrize("around", [straight, flattened])
def test_after_success(around, labels):
    model = mixed_modes(around)
    x, _ = sequences(N, 3)
    with unchanged(model):
        estimate(Noisy(model), x.split(3), labels=labels)


@pytest.mark.parametrize("around", [straight, flattened])
def test_after_failure_in_the_first_batch(around):
    model, (x, _) = Noisy(mixed_modes(around), fails_after=0), sequences(N, 3)
    with unchanged(model), pytest.raises(ArithmeticError, match="half way"):
        estimate(model, [x])


@pytest.mark.parametrize(("around", "calls"), [(straight, 0), (flattened, 0), (flattened, 1), (flattened, 2)])
def test_after_failure_in_a_later_batch(around, calls):
    """In its first pass, in torch.func, or in the first of the single samples."""
    model, (x, _) = Noisy(mixed_modes(around)), sequences(N, 3)

    def batches():
        yield x
        model.fails_after = model.calls + calls
        yield x

    with unchanged(model), pytest.raises(ArithmeticError, match="half way"):
        estimate(model, batches())
    assert model.calls > 2


@pytest.mark.parametrize("where", ["data", "progress", "targets"])
def test_after_failure_of_another_callback(where):
    model = mixed_modes()
    x, y = sequences(N, 3)

    def broken(*_):
        raise ArithmeticError("half way")

    def batches():
        yield x, y
        if where == "data":
            broken()
        yield x, y

    with unchanged(model), pytest.raises(ArithmeticError, match="half way"):
        estimate(
            model,
            batches(),
            labels="true",
            progress=broken if where == "progress" else None,
            targets=broken if where == "targets" else None,
        )


def test_gradients_of_training_stay():
    model, x = network(3), inputs(N)
    model(x).sum().backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    estimate(model, [x])
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_settings_of_attention_stay():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        estimate(network(3), [inputs(N)])
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_data_are_not_changed():
    model, (x, y) = Sequence(flattened), sequences(N, 3)
    before, batch = x.clone(), {"x": x, "y": y}
    estimate(model, [batch], lambda batch: model(batch["x"]), labels="true", targets=lambda batch: batch["y"])
    assert batch["x"] is x
    assert torch.equal(x, before)
    assert not x.requires_grad


def test_forward_sees_a_model_in_eval_mode_with_gradients_and_without_autocast():
    model, seen = mixed_modes(), []
    x, _ = sequences(N, 3)

    def forward(x):
        assert not any(module.training for module in model.modules())
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return model(x)

    with torch.no_grad(), torch.autocast("cpu"):
        estimate(model, [x], forward)
    assert set(seen) == {(True, False)}


def test_a_training_step_after_an_estimate_is_the_step_without_it():
    def step(measure):
        torch.manual_seed(1)
        model = randomise(nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3)))
        x, y = torch.randn(N, WIDTH), torch.randint(3, (N,))
        if measure:
            estimate(model, [(x, y)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        return [tensor.clone() for tensor in model.state_dict().values()]

    assert all(torch.equal(a, b) for a, b in zip(step(True), step(False), strict=True))
