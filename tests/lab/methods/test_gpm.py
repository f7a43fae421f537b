"""GPM against brute force: what it keeps of a layer's inputs, and what its steps leave alone."""

import pytest
import torch
from torch import nn

from bitfreeze.lab.methods import input_space, make_method
from bitfreeze.lab.methods.input_space import Inputs, joined_basis, missing_directions
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.tasks import Batch, Task
from support.projection import joined, normalised, projector, reference, representations, steps
from support.small_tasks import STREAM, TASKS, convolutional, few, learn, mlp, prepare

NETS = pytest.mark.parametrize("make", [mlp, convolutional, normalised])


def images(task: Task, count: int = 40) -> torch.Tensor:
    return few(task, count).train.take(slice(None))[0]


def overlap(change: torch.Tensor, basis: torch.Tensor) -> float:
    """Largest part of a change along a direction, as a share of the change."""
    return ((change @ basis.double()).norm(dim=0).max() / change.norm()).item()


# the steps


@NETS
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_update_is_orthogonal_to_the_stored_directions(make, momentum):
    method = prepare("gpm", make, threshold=0.8, momentum=momentum)
    learn(method, TASKS[0])
    for name, change in steps(method, TASKS[1], images(TASKS[1])).items():
        assert method.bases[name].shape[1] > 0
        assert change.norm() > 1e-3
        assert overlap(change, method.bases[name]) < 1e-5


@NETS
def test_without_projection_the_same_steps_go_along_the_stored_directions(make):
    """So that the test above can fail."""
    method = prepare("gpm", make, threshold=0.8)
    learn(method, TASKS[0])
    bases, method.bases = method.bases, {}
    for name, change in steps(method, TASKS[1], images(TASKS[1])).items():
        assert overlap(change, bases[name]) > 0.05


@pytest.mark.parametrize("make", [mlp, convolutional])
def test_outputs_on_the_stored_inputs_do_not_change_where_the_basis_holds_all_of_them(make):
    method = prepare("gpm", make, threshold=1.0, samples=8)
    learn(method, TASKS[0])
    data = few(TASKS[0], 8)
    method.bases = {}
    method.end_task(TASKS[0], data)
    x = data.train.take(slice(None))[0]
    before = method.logits(x, TASKS[0]).detach()
    changes = steps(method, TASKS[1], images(TASKS[1]), count=20)
    assert max(change.norm() for change in changes.values()) > 0.1
    method.net.eval()
    torch.testing.assert_close(method.logits(x, TASKS[0]).detach(), before, rtol=0, atol=1e-4)
    other = images(TASKS[2])
    assert (method.net.features(other, 0) - prepare("ft", make).net.features(other, 0)).abs().max() > 0.1


def test_the_first_task_is_free_and_scales_of_norms_are_frozen_after_it():
    method = prepare("gpm", normalised)
    scales = [module for module in method.net.backbone if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    start = [module.weight.detach().clone() for module in scales]
    learn(method, TASKS[0])
    after = [p.detach().clone() for module in scales for p in module.parameters()]
    assert all(not torch.equal(module.weight, before) for module, before in zip(scales, start, strict=True))
    learn(method, TASKS[1])
    assert all(torch.equal(p, a) for p, a in zip((p for m in scales for p in m.parameters()), after, strict=True))


def test_heads_are_not_projected():
    method = prepare("gpm")
    learn(method, TASKS[0])
    plain = prepare("ft")
    plain.net.load_state_dict(method.net.state_dict())
    for one in (method, plain):
        batch = Batch(images(TASKS[1]), torch.arange(40) % 2, TASKS[1])
        one.train_batch(batch, 0.0, one.optimizers(TASKS[1], 0.1))
    assert torch.equal(method.net.heads[1].weight, plain.net.heads[1].weight)
    assert not torch.equal(method.net.backbone[1].weight, plain.net.backbone[1].weight)


# the basis


@NETS
def test_the_growing_basis_is_that_of_the_formula_by_brute_force(make):
    method = prepare("gpm", make, threshold=0.9, increment=0.01, first_threshold=0.8, samples=60)
    expected: dict[str, torch.Tensor] = {}
    for task in TASKS[:3]:
        data = few(task, 60)  # as many as are looked at, so that drawing them does not matter
        r = representations(method, data.train.take(slice(None))[0], task)
        method.end_task(task, data)
        for number, (name, columns) in enumerate(r.items()):
            old = expected.get(name, columns[:, :0])
            threshold = (0.9 if number else 0.8) + 0.01 * task.index
            expected[name], _ = reference(columns, old, columns.new_zeros(old.shape[1]), threshold, 1.0)
            torch.testing.assert_close(projector(method.bases[name]), projector(expected[name]), rtol=0, atol=1e-5)
        with torch.no_grad():
            for parameter in method.net.backbone.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("threshold", [0.3, 0.9, 0.97, 0.999])
def test_the_threshold_is_reached_and_not_overshot_by_more_than_one_direction(threshold):
    torch.manual_seed(0)
    basis = torch.zeros(30, 0)
    for _ in range(4):
        inputs, rows = Inputs(30, torch.device("cpu")), torch.randn(200, 30) * torch.rand(30) ** 3
        inputs.add(rows)
        new, values = missing_directions(inputs, basis, threshold)
        share = inputs.energy_along(torch.cat([basis, new], 1)) / inputs.energy()
        if new.shape[1]:
            assert share.sum() >= threshold - 1e-6
            assert share[:-1].sum() < threshold
            torch.testing.assert_close(values.square() / inputs.energy(), share[basis.shape[1] :], rtol=1e-4, atol=1e-9)
        else:
            assert share.sum() >= threshold - 1e-6
        basis = joined_basis(basis, new)


@pytest.mark.parametrize("rows", [12, 300])
def test_second_moments_and_the_inputs_themselves_give_the_same_basis(rows):
    torch.manual_seed(0)
    x = torch.randn(rows, 40) * torch.linspace(1, 0.01, 40)
    old = torch.linalg.qr(torch.randn(40, 5)).Q
    whole, summed = Inputs(40, x.device), Inputs(40, x.device)
    whole.rows, summed.moment = x.double(), torch.zeros(40, 40, dtype=torch.float64)
    for part in x.split(7):
        summed.add(part)
    assert whole.moment is None
    assert not len(summed.rows)
    torch.testing.assert_close(whole.energy(), summed.energy())
    torch.testing.assert_close(whole.energy_along(old), summed.energy_along(old))
    (one, s), (other, t) = (missing_directions(inputs, old, 0.98) for inputs in (whole, summed))
    torch.testing.assert_close(s, t)
    torch.testing.assert_close(projector(one), projector(other), rtol=0, atol=1e-9)


def test_many_inputs_are_not_held():
    inputs = Inputs(20, torch.device("cpu"))
    for _ in range(50):
        inputs.add(torch.randn(9, 20))
        assert len(inputs.rows) <= 10
    assert inputs.moment is not None


def test_of_a_layer_with_many_positions_some_samples_are_looked_at(monkeypatch):
    monkeypatch.setattr(input_space, "MOST_INPUTS", 100)
    method, x = prepare("gpm", convolutional), images(TASKS[0])
    with torch.no_grad(), input_space.watched_inputs(method.layers) as inputs:
        method.net.eval().features(x, 0)
    few = representations(method, x[:3], TASKS[0])  # 3 samples of 36 positions
    assert inputs["backbone.0"].energy() == pytest.approx(few["backbone.0"].square().sum().item())
    assert inputs["backbone.5"].energy() == pytest.approx(
        representations(method, x, TASKS[0])["backbone.5"].square().sum().item()
    )


def test_the_basis_stays_orthonormal_over_many_tasks():
    """Later directions have little energy next to what the basis holds: rounding would show there."""
    torch.manual_seed(0)
    basis = torch.zeros(60, 0)
    strong = 1000 * torch.randn(3, 60)
    for _ in range(40):
        inputs = Inputs(60, basis.device)
        inputs.add(torch.randn(100, 3) @ strong + torch.randn(100, 2) @ torch.randn(2, 60))
        basis = joined_basis(basis, missing_directions(inputs, basis, 1 - 1e-8)[0])
        assert (projector(basis.T) - torch.eye(basis.shape[1])).abs().max() < 1e-5
    assert basis.shape[1] == 60


def test_a_full_basis_and_dead_inputs_add_nothing():
    inputs = Inputs(6, torch.device("cpu"))
    inputs.add(torch.zeros(4, 6))
    assert missing_directions(inputs, torch.zeros(6, 0), 1.0)[0].shape == (6, 0)
    inputs.add(torch.randn(40, 6))
    assert missing_directions(inputs, torch.eye(6), 1.0)[0].shape == (6, 0)
    assert missing_directions(inputs, torch.eye(6)[:, :4], 1.0)[0].shape == (6, 2)


@pytest.mark.parametrize("count", [8, 200])
def test_rounding_is_no_direction(count):
    torch.manual_seed(0)
    inputs, empty = Inputs(30, torch.device("cpu")), torch.zeros(30, 0)
    inputs.add(torch.randn(count, 3) @ torch.randn(3, 30))
    basis = joined_basis(empty, missing_directions(inputs, empty, 1.0)[0])
    assert basis.shape == (30, 3)
    assert missing_directions(inputs, basis, 1.0)[0].shape == (30, 0)


def test_inputs_are_taken_without_dropout():
    method = prepare("gpm", convolutional, samples=50)
    data = few(TASKS[0], 50)
    method.net.train()
    method.end_task(TASKS[0], data)
    once = method.bases
    method.bases = {}
    method.net.train()
    method.end_task(TASKS[0], data)
    assert all(torch.allclose(projector(once[k]), projector(method.bases[k]), atol=1e-6) for k in once)


def test_what_is_kept_is_counted_and_reported():
    method = prepare("gpm")
    assert method.report() == {}
    learn(method, TASKS[0])
    (basis,) = method.bases.values()
    assert basis.shape[0] == 65  # 64 pixels, and 1 for the bias
    assert method.extra_bytes() == 4 * basis.numel()
    assert method.report() == {"directions_held": basis.shape[1] / 65}


# refusals


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def tied() -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    layers[3].weight = layers[1].weight
    return layers


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)), "got running ones in backbone.2; use"),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2)), "cannot project a grouped convolution, got backbone.0"),
        (nn.Sequential(nn.Linear(4, 4), nn.Conv1d(1, 2, 3)), r"got backbone.1.weight of shape \(2, 1, 3\)"),
        (nn.Sequential(nn.Flatten(), Doubled(64, 4)), "got Doubled with its own forward in backbone.1"),
        (nn.Flatten(), "gpm has nothing to project"),
        (tied(), "got a shared one in backbone.3"),
    ],
)
def test_networks_that_do_not_suit_are_refused(backbone, message):
    with pytest.raises(ValueError, match=message):
        make_method("gpm", {}).build(MultiHead(backbone, 4, [2]), TASKS[:1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_decay": 0.1}, "method.weight_decay must be 0, got 0.1; gpm projects gradients"),
        ({"threshold": 0.0}, "method.threshold must be greater than 0 and at most 1, got 0.0"),
        ({"first_threshold": 1.5}, r"method.first_threshold must be none, or in \(0, 1\], got 1.5"),
        ({"increment": -0.1}, r"method.increment must be in \[0, 1\], got -0.1"),
        ({"samples": 0}, "method.samples must be at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_method("gpm", options)


@pytest.mark.parametrize(("norm", "widths"), [(False, [49, 37, 17, 17, 9]), (True, [48, 36, 16, 16, 8])])
def test_trains_the_laboratorys_alexnet_with_biases_or_norms(norm, widths):
    torch.manual_seed(0)
    options = {"kind": "alexnet", "channels": [4, 4, 4], "units": [8, 8], "norm": norm, "bias": not norm}
    method = make_method("gpm", {"threshold": 0.8})
    method.build(build_network(options, (3, 32, 32), [2, 2]), STREAM.tasks[:2])
    x = torch.randn(12, 3, 32, 32)
    for name, columns in representations(method, x, TASKS[0]).items():
        inputs = Inputs(len(columns), x.device)
        inputs.add(columns.T)
        method.extend(name, columns[:, :0].float(), inputs, 0.8)
    assert [len(basis) for basis in method.bases.values()] == widths
    for name, change in steps(method, TASKS[1], x).items():
        assert overlap(change, method.bases[name]) < 1e-5
        assert joined(method.layers[name]).shape[1] == len(method.bases[name])


def test_a_head_that_all_tasks_share_is_projected_too():
    """In the scenario "domain" no output on the stored inputs changes at all, the head's included."""
    torch.manual_seed(0)
    settings = {"kind": "mlp", "hidden": [32], "bias": False}
    net = build_network(settings, STREAM.shape, [TASKS[0].classes], "domain")
    method = make_method("gpm", {"threshold": 1.0, "samples": 8})
    method.build(net, TASKS)
    data = few(TASKS[0], 8)
    method.end_task(TASKS[0], data)
    x = data.train.take(slice(None))[0]
    before = method.logits(x, TASKS[0]).detach()
    changes = steps(method, TASKS[1], images(TASKS[1]), count=20)
    assert changes["heads.0"].norm() > 0.01
    torch.testing.assert_close(method.logits(x, TASKS[0]), before, rtol=1e-4, atol=1e-4)
