"""The library on a device: the results of the CPU, states that move, and no step that waits for the device."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitfreeze import BLIP, Rules, diagonal_fisher, information_gain, quantize
from bitfreeze.blip import pacing
from bitfreeze.fisher import estimate
from bitfreeze.likelihoods import Bernoulli, Gaussian
from support.host_reads import HostReads
from support.layer_cases import CONVOLUTIONS
from support.truth import Readout

CPU = torch.device("cpu")
RULES = {
    "directions": Rules.directions(),
    "all directions": Rules.directions(strongest=None, every=1),
    "strict": Rules.strict(),
    "levels": replace(Rules.strict(), levels=True),
    "following": Rules.following(),
    "released": Rules.released(),
    "straight-through": Rules.text(straight_through=True),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 24), nn.ReLU(), nn.LayerNorm(24), nn.Linear(24, 5)
    )


def batches(task: int, device: torch.device, count: int = 8) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(task)
    x = torch.randn(32 * count, 1, 8, 8, generator=random)
    y = x.flatten(1)[:, 5 * task : 5 * task + 5].argmax(1)
    return [(a.to(device), b.to(device)) for a, b in zip(x.split(32), y.split(32), strict=True)]


def train(model: nn.Module, task: int, device: torch.device, lr: float = 0.02, epochs: int = 2) -> list[HostReads]:
    """Train a task; returns what each step made the host wait for."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), []
    for _ in range(epochs):
        for x, y in batches(task, device):
            with HostReads() as reads:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            found.append(reads)
    return found


def consolidate(blip: BLIP, task: int, device: torch.device) -> Any:
    return blip.consolidate(batches(task, device), labels="exact")


def tensors(state: Any, path: str = "") -> dict[str, Tensor]:
    """All tensors of a nested state, by their paths."""
    if isinstance(state, Tensor):
        return {path: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return {k: v for key, item in items for k, v in tensors(item, f"{path}/{key}").items()}


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
@pytest.mark.parametrize("name", RULES)
def test_learns_what_the_cpu_learns(name, device, monkeypatch) -> None:
    monkeypatch.setattr(pacing, "READ_EVERY", 1)  # as on the CPU: else the widths of intervals follow some steps later
    models, reports = [], []
    for place in (CPU, device):
        model = network().to(place)
        blip = BLIP(model, rules=RULES[name])
        blip.attach()
        for task in range(3):
            train(model, task, place)
            reports.append(consolidate(blip, task, place))
        held = [tensor for path, tensor in tensors(blip.state_dict()).items() if "/settings/" not in path]
        assert {tensor.device for tensor in held} == {place}
        assert {bits.device for bits in blip.frozen_bits().values()} == {place}
        models.append({key: value.cpu() for key, value in model.state_dict().items()})
    for key, value in models[0].items():
        torch.testing.assert_close(models[1][key], value, rtol=2e-3, atol=2e-4)
    for mine, theirs in zip(reports[:3], reports[3:], strict=True):
        assert mine.used == pytest.approx(theirs.used, abs=0.01)
        assert mine.samples == theirs.samples


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
@pytest.mark.parametrize("name", RULES)
def test_model_and_state_move_between_devices(name, device) -> None:
    """On the CPU after one task, on the device for the next, and back: weights stay inside their intervals."""
    model = network()
    blip = BLIP(model, rules=RULES[name])
    blip.attach()
    train(model, 0, CPU)
    consolidate(blip, 0, CPU)
    saved, weights = blip.state_dict(), copy.deepcopy(model.state_dict())
    model.to(device)
    train(model, 1, device)
    consolidate(blip, 1, device)
    loaded = network().to(device)
    loaded.load_state_dict(weights)
    other = BLIP(loaded, rules=RULES[name])
    other.load_state_dict(saved)
    other.attach()
    train(loaded, 1, device)
    consolidate(other, 1, device)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    model.to(CPU)
    train(model, 2, CPU)
    consolidate(blip, 2, CPU)
    assert blip.tasks == 3


@pytest.mark.parametrize("labels", ["sample", "exact", "true"])
def test_fisher_is_that_of_the_cpu(labels, device) -> None:
    """Labels are drawn with numbers of the host, so that they are the same on every device."""
    found = []
    for place in (CPU, device):
        random = torch.Generator().manual_seed(7)
        fisher = diagonal_fisher(network().to(place), batches(0, place), labels=labels, generator=random)
        assert {value.device for value in fisher.values()} == {place}
        found.append({name: value.cpu() for name, value in fisher.items()})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-3, atol=1e-7)


def test_data_of_the_host_are_moved_to_the_device(device) -> None:
    model = network().to(device)
    here = diagonal_fisher(model, batches(0, CPU), labels="true")
    there = diagonal_fisher(model, batches(0, device), labels="true")
    assert all(torch.equal(here[name].cpu(), there[name].cpu()) for name in here)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: f"{case[1].__name__}-{case[0]}")
def test_rules_of_layers_work_there(case, device) -> None:
    _, kind, sizes, options, shape = case
    torch.manual_seed(0)
    x, y = torch.randn(6, *shape), torch.randint(3, (6,))
    model = Readout(kind(*sizes, **options), x)
    expected = estimate(model, [(x, y)], labels="true")
    found = estimate(model.to(device), [(x.to(device), y.to(device))], labels="true")
    assert found.ways == expected.ways
    for name, value in expected.values.items():
        torch.testing.assert_close(found.values[name].cpu(), value, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("make", [Bernoulli, lambda z: Gaussian(z, 0.5)], ids=["Bernoulli", "Gaussian"])
def test_other_likelihoods_work_there(make, device) -> None:
    found = []
    for place in (CPU, device):
        model = network().to(place)
        data = [x for x, _ in batches(0, place)]
        random = torch.Generator().manual_seed(1)
        fisher = diagonal_fisher(model, data, lambda x, model=model: make(model(x)), generator=random)
        found.append({name: value.cpu() for name, value in fisher.items()})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-3, atol=1e-7)


def test_random_states_are_put_back(device) -> None:
    model = nn.Sequential(network(), nn.Dropout(0.5)).to(device)
    torch.manual_seed(0)
    expected = torch.rand(5, device=device).cpu()
    torch.manual_seed(0)
    diagonal_fisher(model, [torch.randn(4, 1, 8, 8).to(device)])
    torch.manual_seed(0)
    diagonal_fisher(model, batches(0, device))
    assert torch.equal(torch.rand(5, device=device).cpu(), expected)


def test_bits_are_those_of_the_cpu(device) -> None:
    x, old, new = torch.randn(1000), torch.rand(1000), torch.rand(1000)
    assert torch.equal(quantize(x.to(device), 7, 2.0).cpu(), quantize(x, 7, 2.0))
    gain = information_gain((old + new).to(device), old.to(device), 2)
    torch.testing.assert_close(gain.cpu(), information_gain(old + new, old, 2))


def test_weights_that_are_not_finite_are_told_at_the_end(device) -> None:
    model = network().to(device)
    blip = BLIP(model)
    blip.attach()
    train(model, 0, device)
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = torch.inf
    blip.clamp_()
    with pytest.raises(ValueError, match="finite"):
        consolidate(blip, 0, device)


# what a step makes the host wait for


def test_reads_of_the_host_are_seen(device) -> None:
    x = torch.arange(4.0, device=device)
    waits = {
        "item": lambda: x[0].item(), "float": lambda: float(x[0]), "bool": lambda: bool(x[0]), "cpu": x.cpu,
        "list": x.tolist, "any": lambda: 1 if x.any() else 0, "nonzero": x.nonzero, "mask": lambda: x[x > 1],
        "equal": lambda: torch.equal(x, x), "numpy": lambda: x.cpu().numpy(),
    }  # fmt: skip
    for name, wait in waits.items():
        with HostReads() as reads:
            wait()
        assert reads.total, name
    with HostReads() as reads:
        (x * 2 + 1).clamp_(0, 3).sum()
        x[torch.tensor([1, 2])].to(device)
        torch.ones(3).to(device)
    assert not reads.total, reads.names


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
@pytest.mark.parametrize("name", ["strict", "levels", "following", "released", "straight-through"])
def test_a_step_with_intervals_waits_for_nothing(name, device) -> None:
    model = network().to(device)
    blip = BLIP(model, rules=RULES[name])
    blip.attach()
    for task in range(3):
        steps = train(model, task, device)
        assert not sum(step.total for step in steps[1:]), [step.names for step in steps]  # the first looks at bounds
        consolidate(blip, task, device)


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
@pytest.mark.parametrize("name", ["directions", "all directions"])
def test_a_step_along_directions_reads_all_costs_at_once_every_eighth_time(name, device) -> None:
    """Training that leaves its intervals in each step, so that each step clamps every layer."""
    model = network().to(device)
    blip = BLIP(model, rules=RULES[name])
    blip.attach()
    train(model, 0, device)
    consolidate(blip, 0, device)
    steps = train(model, 1, device, lr=0.05, epochs=4)
    assert [step.total for step in steps] == [int((k + 1) % pacing.READ_EVERY == 0) for k in range(len(steps))]
    assert 0 < blip.drift() < 2 * blip._tensors.tolerance


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
def test_costs_that_were_not_read_yet_are_saved(device) -> None:
    """A training that goes on from a state between two reads ends with the same bytes."""
    models = []
    for stops in (False, True):
        model = network().to(device)
        blip = BLIP(model, rules=RULES["directions"])
        blip.attach()
        train(model, 0, device)
        consolidate(blip, 0, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step, (x, y) in enumerate(batches(1, device, count=30)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if stops and step in (4, 12, 21):
                saved = copy.deepcopy(blip.state_dict())
                assert saved["unread"]
                blip = BLIP(model, rules=RULES["directions"])
                blip.load_state_dict(saved)
                blip.attach()
        models.append(model.state_dict())
    assert all(torch.equal(models[0][name].cpu(), models[1][name].cpu()) for name in models[0])
