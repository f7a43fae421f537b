"""Modes, contexts, wrappers and compilation around an estimate change nothing of it."""

import pytest
import torch
from torch import nn

from bitfreeze import diagonal_fisher
from bitfreeze.fisher import estimate
from support.networks import WIDTH, Sequence, flattened, inputs, network, sequences, straight
from support.truth import assert_matches, empirical_fisher, randomise

N = 8


def seeded():
    return torch.Generator().manual_seed(1)


def test_dropout_and_batch_statistics_are_off():
    model = randomise(nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3))).double()
    x, y = inputs(N), torch.randint(3, (N,))
    assert_matches(estimate(model.train(), [(x, y)], labels="true").values, empirical_fisher(model, x, y))


@pytest.mark.parametrize("around", [straight, flattened])
def test_surroundings_change_nothing(around):
    model, (x, _) = Sequence(around).float(), sequences(N, 3)
    x = x.float()
    expected = diagonal_fisher(model, [x], generator=seeded())
    for surrounding in (torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad()):
        with surrounding:
            assert_matches(diagonal_fisher(model, [x], generator=seeded()), expected, 1e-6)


@pytest.mark.parametrize("around", [straight, flattened])
@pytest.mark.parametrize("when", ["before", "has run", "has run under other conditions", "in place", "forward"])
def test_compiled_model(around, when):
    """Compiled code that has run does not see hooks that are added later."""
    torch.compiler.reset()
    model, (x, _) = Sequence(around), sequences(N, 3)
    expected = diagonal_fisher(model, [x], generator=seeded())
    compiled, forward = torch.compile(model, backend="eager"), None
    if when == "in place":
        compiled = model
        model.compile(backend="eager")
    elif when == "forward":
        compiled, forward = model, torch.compile(lambda x: model(x), backend="eager")
        forward(x)
    if when == "has run under other conditions":
        with torch.no_grad():
            compiled.eval()(x)
    elif when != "before":
        compiled(x)
    result = estimate(compiled, [x], forward, generator=seeded())
    assert_matches(result.values, expected, 1e-12)
    assert result.ways["head.weight"] == "rule Linear.weight"
    torch.testing.assert_close(compiled(x), model(x))
    torch.compiler.reset()


def test_data_parallel_keeps_the_names():
    model, x = network(3), inputs(N)
    expected = diagonal_fisher(model, [x], generator=seeded())
    assert_matches(diagonal_fisher(nn.DataParallel(model), [x], generator=seeded()), expected, 1e-12)
