"""What an estimate depends on, and what not: batches, seeds, memory."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bitfreeze import diagonal_fisher
from bitfreeze.fisher import FisherEstimate, estimate
from bitfreeze.likelihoods import Bernoulli, Categorical, Gaussian, Product
from support.networks import (
    STEPS,
    TOKENS,
    Sequence,
    TiedHead,
    TwoHeads,
    flattened,
    inputs,
    network,
    sequences,
    straight,
)
from support.truth import Readout, assert_matches, empirical_fisher, randomise

N = 20


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def two_heads():
    model = TwoHeads()

    def forward(x):
        logits, value = model(x)
        return Product([Categorical(logits), Gaussian(value), Bernoulli(logits[:, :2])])

    return model, forward, inputs(N)


def tied():
    return randomise(TiedHead()).double(), None, torch.randint(TOKENS, (N, STEPS))


def multi_label():
    model = network(3)
    return model, lambda x: Bernoulli(model(x)), inputs(N)


MODELS = {
    "classes": lambda: (network(3), None, inputs(N)),
    "multi-label": multi_label,
    "fallback": lambda: (Sequence(flattened), None, sequences(N, 3)[0]),
    "sequence-labels": tied,
    "several-heads": two_heads,
}


@pytest.mark.parametrize("labels", ["sample", "exact"])
@pytest.mark.parametrize("name", MODELS)
def test_batch_size_changes_nothing(name, labels):
    model, forward, x = MODELS[name]()
    whole, *others = (
        diagonal_fisher(model, x.split(size), forward, labels=labels, generator=seeded()) for size in (N, 1, 7)
    )
    for other in others:
        assert_matches(other, whole, 1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_seeds(name):
    model, forward, x = MODELS[name]()
    first, again, other = (diagonal_fisher(model, [x], forward, generator=seeded(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_without_a_generator_the_global_seed_decides():
    model, x = network(3), inputs(N)
    torch.manual_seed(5)
    first, again = diagonal_fisher(model, [x]), diagonal_fisher(model, [x])
    torch.manual_seed(6)
    other = diagonal_fisher(model, [x])
    assert torch.equal(first["0.weight"], again["0.weight"])
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_a_generator_goes_on_from_where_it_is():
    model, x, generator = network(3), inputs(N), seeded()
    first, second = (diagonal_fisher(model, [x], generator=generator) for _ in range(2))
    assert not torch.equal(first["0.weight"], second["0.weight"])


@pytest.mark.parametrize("samples", [1, 3, 4, 5, 11, 12, 100])
@pytest.mark.parametrize("around", [straight, flattened])
def test_samples_cut_a_batch(around, samples):
    model, (x, y) = Sequence(around), sequences(12, 3)
    taken = []

    def batches():
        for batch in zip(x.split(4), y.split(4), strict=True):
            taken.append(batch)
            yield batch

    result = estimate(model, batches(), labels="true", samples=samples)
    assert result.samples == min(samples, 12)
    assert len(taken) == min(-(-samples // 4), 3)
    assert_matches(result.values, empirical_fisher(model, x[:samples], y[:samples]))


def test_samples_cut_drawn_and_exact_labels_too():
    model, x = network(3), inputs(N)
    for labels in ("sample", "exact"):
        cut = diagonal_fisher(model, x.split(8), labels=labels, samples=10, generator=seeded())
        assert_matches(cut, diagonal_fisher(model, [x[:10]], labels=labels, generator=seeded()), 1e-12)


def test_empty_batches_are_passed_over():
    model, x = network(3), inputs(N)
    result = estimate(model, [x[:0], x[:5], x[:0], x[5:], x[:0]], labels="exact")
    assert result.samples == N
    assert_matches(result.values, diagonal_fisher(model, [x], labels="exact"), 1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("memory_bytes", [0, 1, 1000])
def test_little_memory_gives_the_same(name, memory_bytes):
    model, forward, x = MODELS[name]()
    small = estimate(model, [x], forward, memory_bytes=memory_bytes, generator=seeded())
    whole = estimate(model, [x], forward, generator=seeded())
    assert_matches(small.values, whole.values, 1e-12)
    assert small.ways == whole.ways


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(2, 3, 3, groups=1), nn.Conv2d(2, 4, 2, groups=2), nn.ConvTranspose2d(2, 3, 2)]
)
def test_little_memory_gives_the_same_for_convolutions(layer):
    x = torch.randn(7, 2, 4, 5)
    model = randomise(Readout(layer, x))
    small, whole = (estimate(model, [x], memory_bytes=size, generator=seeded()) for size in (1, 2**28))
    assert_matches(small.values, whole.values, 1e-5)
    assert small.ways == whole.ways


@pytest.mark.parametrize("samples", [None, 13])
def test_progress_rises_to_the_number_of_samples(samples):
    model, x, told = network(3), inputs(N), []
    result = estimate(model, x.split(6), samples=samples, progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == ([6, 12, 18, 20] if samples is None else [6, 12, 13])
    assert {total for _, total in told} <= {samples, N}
    assert told[-1][0] == result.samples


def test_report():
    model, x = network(3), inputs(N)
    result = estimate(model, [x])
    assert isinstance(result, FisherEstimate)
    assert list(result.values) == list(result.ways) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert result.seconds > 0
    for name, value in result.values.items():
        parameter = model.get_parameter(name)
        assert value.shape == parameter.shape
        assert value.dtype == parameter.dtype
        assert not value.requires_grad
        assert (value >= 0).all()


def test_loaders_lists_and_generators_are_data():
    model, x, y = network(3), inputs(N), torch.randint(3, (N,))
    expected = diagonal_fisher(model, [(x, y)], labels="true")
    for data in (
        DataLoader(TensorDataset(x, y), batch_size=6),
        [[x, y]],
        ((x[i : i + 3], y[i : i + 3]) for i in range(0, N, 3)),
        zip(x.split(9), y.split(9), strict=True),
        [(x, y, "more")],
    ):
        assert_matches(diagonal_fisher(model, data, labels="true"), expected, 1e-12)


def test_watched_part_has_the_same_values():
    model, x = network(3), inputs(N)
    whole = diagonal_fisher(model, [x], generator=seeded())
    for watch, names in [
        (model[0], ["0.weight", "0.bias"]),
        ("2.bias", ["2.bias"]),
        ([model[2]], ["2.weight", "2.bias"]),
    ]:
        part = diagonal_fisher(model, [x], generator=seeded(), watch=watch)
        assert_matches(part, {name: whole[name] for name in names}, 1e-12)


def test_frozen_parameters_are_measured():
    model, x = network(3), inputs(N)
    expected = diagonal_fisher(model, [x], generator=seeded())
    for frozen in (model, model[0], model[2]):
        model.requires_grad_(True)
        frozen.requires_grad_(False)
        assert_matches(diagonal_fisher(model, [x], generator=seeded()), expected, 1e-12)


def test_parameters_that_get_no_gradient_have_none():
    """The head of another task."""
    model, x = nn.ModuleDict({"a": network(3), "b": network(3)}), inputs(N)
    values = diagonal_fisher(model, [x], lambda x: model["a"](x))
    assert all(value.any() == name.startswith("a.") for name, value in values.items())


@pytest.mark.parametrize("factor", [2.0, 0.125])
def test_scaling_law(factor):
    """A weight that is used times a factor has the Fisher of the product, times the factor squared."""
    model, x = network(3), inputs(N)
    plain = diagonal_fisher(model, [x], labels="exact")
    with torch.no_grad():
        model[0].weight.div_(factor)
        model[0].bias.div_(factor)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] * factor,))
    scaled = diagonal_fisher(model, [x], labels="exact")
    assert_matches(scaled, {k: v * (factor**2 if k.startswith("0.") else 1) for k, v in plain.items()}, 1e-12)


def test_mean_over_data_is_the_mean_of_means():
    model, x = network(3), inputs(N)
    halves = [diagonal_fisher(model, [part], labels="exact") for part in (x[:10], x[10:])]
    whole = diagonal_fisher(model, itertools.chain(x[:10].split(3), x[10:].split(4)), labels="exact")
    assert_matches(whole, {name: (halves[0][name] + halves[1][name]) / 2 for name in whole}, 1e-12)


def test_parameter_without_entries():
    model, x = network(3), inputs(N)
    expected = diagonal_fisher(model, [x], labels="exact")
    model.register_parameter("empty", nn.Parameter(torch.empty(0, 3, dtype=torch.float64)))
    values = diagonal_fisher(model, [x], labels="exact")
    assert values.pop("empty").shape == (0, 3)
    assert_matches(values, expected, 1e-12)
