"""SGP against the formulas of its paper."""

import pytest
import torch

from bitfreeze.lab.methods import make_method
from bitfreeze.lab.methods.sgp import importance
from bitfreeze.lab.tasks import Batch
from support.projection import joined, normalised, projector, reference, representations
from support.small_tasks import TASKS, convolutional, few, learn, mlp, prepare

NETS = pytest.mark.parametrize("make", [mlp, convolutional, normalised])


def one_step(method, state):
    """Change of [W b] of each layer in one step of task 1 from this state."""
    method.net.load_state_dict(state)
    method.net.train()
    torch.manual_seed(1)
    before = {name: joined(layer) for name, layer in method.layers.items()}
    batch = Batch(few(TASKS[1], 40).train.take(slice(None))[0], torch.arange(40) % 2, TASKS[1])
    method.train_batch(batch, 0.0, method.optimizers(TASKS[1], 0.5))
    return {name: joined(layer) - before[name] for name, layer in method.layers.items()}


@NETS
def test_the_update_is_scaled_along_each_stored_direction_by_one_minus_its_importance(make):
    method = prepare("sgp", make, threshold=0.95, alpha=1.0)
    learn(method, TASKS[0])
    state = {name: value.clone() for name, value in method.net.state_dict().items()}
    scaled = one_step(method, state)
    bases, method.bases = method.bases, {}
    plain = one_step(method, state)
    for name, basis in bases.items():
        left = 1 - method.importances[name].double()
        assert left.max() > 0.1
        m, step = basis.double(), plain[name]
        tolerance = 1e-5 * step.norm().item()
        torch.testing.assert_close(scaled[name] @ m, (step @ m) * left, rtol=0, atol=tolerance)
        rest = torch.eye(len(m)) - projector(basis)
        torch.testing.assert_close(scaled[name] @ rest, step @ rest, rtol=0, atol=tolerance)


@NETS
def test_basis_and_importances_are_those_of_the_formula_by_brute_force(make):
    method = prepare("sgp", make, threshold=0.8, increment=0.02, samples=60, alpha=3.0)
    expected: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for task in TASKS[:4]:
        data = few(task, 60)
        r = representations(method, data.train.take(slice(None))[0], task)
        method.end_task(task, data)
        for name, columns in r.items():
            old = expected.get(name, (columns[:, :0], columns[0, :0]))
            expected[name] = reference(columns, *old, 0.8 + 0.02 * task.index, 3.0)
            torch.testing.assert_close(method.importances[name].double(), expected[name][1], rtol=0, atol=1e-4)
            mine = projector(method.bases[name], method.importances[name])
            torch.testing.assert_close(mine, projector(*expected[name]), rtol=0, atol=1e-4)
        with torch.no_grad():
            for parameter in method.net.backbone.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))


@NETS
def test_a_large_alpha_makes_it_gpm(make):
    nets = []
    for name, options in (("gpm", {}), ("sgp", {"alpha": 1e12})):
        method = prepare(name, make, threshold=0.9, **options)
        for task in TASKS[:2]:
            learn(method, task)
        nets.append(method.net.state_dict())
        if name == "sgp":
            assert all(torch.equal(values, torch.ones_like(values)) for values in method.importances.values())
    for key, value in nets[0].items():
        torch.testing.assert_close(nets[1][key], value, rtol=0, atol=1e-5)


def test_importances_lie_in_0_to_1_and_never_fall():
    method = prepare("sgp", convolutional, alpha=0.5)
    before: dict[str, torch.Tensor] = {}
    for task in TASKS:
        learn(method, task)
        for name, values in method.importances.items():
            assert values.shape[0] == method.bases[name].shape[1]
            assert values.min() >= 0
            assert values.max() <= 1
            old = before.get(name, values[:0])
            assert (values[: len(old)] >= old).all()
        before = dict(method.importances)
    assert any((values < 0.9).any() for values in before.values())


def test_importance_by_hand():
    torch.testing.assert_close(importance(torch.tensor([4.0, 1.0, 0.0]), 3.0), torch.tensor([1.0, 4 / 7, 0.0]))
    torch.testing.assert_close(importance(torch.tensor([4.0, 1.0]), 0.0), torch.tensor([1.0, 0.25]))
    assert torch.equal(importance(torch.zeros(2), 10.0), torch.zeros(2))
    assert not len(importance(torch.zeros(0), 10.0))


def test_importances_are_counted_and_reported():
    method = prepare("sgp")
    learn(method, TASKS[0])
    (basis,), (values,) = method.bases.values(), method.importances.values()
    assert method.extra_bytes() == 4 * (basis.numel() + values.numel())
    assert method.report()["mean_importance"] == pytest.approx(values.mean().item())


def test_bad_options():
    with pytest.raises(ValueError, match=r"method.alpha must be at least 0, got -1"):
        make_method("sgp", {"alpha": -1.0})
    with pytest.raises(ValueError, match=r"method.weight_decay must be 0, got 0.1; sgp projects gradients"):
        make_method("sgp", {"weight_decay": 0.1})
