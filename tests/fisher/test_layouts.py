"""Batches and tensors laid out so that a layer's rule is wrong: they may cost time, never the value."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bitfreeze.fisher import estimate, explain
from support.networks import WIDTH, Sequence, flattened, scrambled, sequences, straight, time_first
from support.truth import (
    assert_matches,
    check_batches,
    cross_entropy_score,
    empirical_fisher,
    mean_over,
    randomise,
    reference,
    squares,
)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("sizes", [(8,), (4, 4), (1, 3, 3), (3, 4, 1), (2, 2)])
@pytest.mark.parametrize("around", [flattened, time_first, scrambled])
def test_layouts_in_which_rows_are_not_samples(around, sizes, steps):
    """With every chance match of the number of steps with that of samples, in the first batch or a later one."""
    batches = [sequences(n, steps) for n in sizes]
    rules = check_batches(Sequence(around), batches)
    assert rules["head.weight"] == "rule Linear.weight"
    if steps > 1:
        assert rules["layer.weight"].startswith(("torch.func (", "one sample at a time ("))


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (flattened, "the first axis of its module's input is not the sample"),
        (time_first, "rule Linear.weight disagrees with autograd"),  # three steps, as many as samples in the check
        (scrambled, "rule Linear.weight disagrees with autograd"),
    ],
)
def test_report_tells_why(around, reason):
    batches = [sequences(8, 3)]
    assert explain(Sequence(around), batches)["layer.weight"] == f"torch.func ({reason})"


@pytest.mark.parametrize("labels", ["true", "exact"])
def test_layout_is_noticed_in_a_network_that_is_sure_of_itself(labels):
    """Labels that it expects have no gradient at all, and so show nothing."""
    model, (x, y) = Sequence(scrambled), sequences(8, 3)
    with torch.no_grad():
        model.head.weight.mul_(1e7)
    result = estimate(model, [(x, y)], labels=labels)
    assert result.ways["layer.weight"] == "torch.func (rule Linear.weight disagrees with autograd)"
    if labels == "true":
        assert_matches(result.values, empirical_fisher(model, x, y))


@pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.RMSNorm(4)])
def test_normalisation_fed_time_first(layer):
    model = nn.Sequential(nn.Linear(WIDTH, 4), Sequence(time_first, layer))
    rules = check_batches(randomise(model).double(), [sequences(4, 4), sequences(3, 4)])
    assert rules["0.weight"] == "rule Linear.weight"
    assert "torch.func" in rules["1.layer.weight"]


class Packed:
    """A batch that offers no way to take single samples out of it."""

    def __init__(self, x):
        self.hidden = (x,)

    def open(self):
        return self.hidden[0]


@pytest.mark.parametrize("sizes", [(5, 3), (3, 5), (2, 2), (1, 4)])
@pytest.mark.parametrize(("around", "rule"), [(straight, True), (flattened, False), (time_first, False)])
def test_batch_that_cannot_be_taken_apart(around, rule, sizes):
    model = Sequence(around)
    batches = [sequences(n, 5) for n in sizes]
    result = estimate(model, [(Packed(x), y) for x, y in batches], lambda batch: model(batch.open()), labels="true")
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert_matches(result.values, empirical_fisher(model, x, y))
    way = result.ways["layer.weight"]
    assert way == "rule Linear.weight" if rule else way.startswith("one sample at a time (")
    assert rule or "running fewer samples fails: labels must have the shape" in way  # forward itself does not fail


@pytest.mark.parametrize("samples", [1, 3, 7])
def test_samples_cut_a_batch_that_cannot_be_taken_apart(samples):
    model, (x, y) = Sequence(flattened), sequences(8, 3)
    batches = [(Packed(x[:5]), y[:5]), (Packed(x[5:]), y[5:])]
    result = estimate(model, batches, lambda batch: model(batch.open()), labels="true", samples=samples)
    assert_matches(result.values, empirical_fisher(model, x[:samples], y[:samples]))


def test_batch_in_time_first_layout():
    """The data themselves are [l, n, d]: rows of the tensor are steps."""
    model = Sequence(time_first)
    batches = [sequences(n, 4) for n in (4, 5, 1)]
    result = estimate(
        model, [(x.transpose(0, 1), y) for x, y in batches], lambda x: model(x.transpose(0, 1)), labels="true"
    )
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert_matches(result.values, empirical_fisher(model, x, y))


@pytest.mark.parametrize("sizes", [(6, 4), (4, 6), (6, 1), (1, 4), (1, 1, 6)])
def test_shared_tensor_with_by_chance_as_many_rows_as_a_batch(sizes):
    """A dictionary holds something that is not per sample, and of the batch's length in some batches only."""
    model = Sequence(flattened)
    weights = torch.rand(4, dtype=torch.float64) + 0.5
    batches = [sequences(n, 4) for n in sizes]

    def forward(batch):
        return model(batch["x"] * batch["shared"][:, None])

    result = estimate(
        model,
        [{"x": x, "shared": weights, "y": y} for x, y in batches],
        forward,
        labels="true",
        targets=lambda b: b["y"],
    )
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert_matches(result.values, empirical_fisher(model, x * weights[:, None], y))


@pytest.mark.parametrize("second", [4, 5])
@pytest.mark.parametrize("keys", [("x", "shared", "y"), ("shared", "x", "y"), ("y", "x", "shared")], ids=str)
def test_batches_whose_keys_come_in_another_order(keys, second):
    model = Sequence(flattened)
    weights = torch.rand(4, dtype=torch.float64) + 0.5
    (x1, y1), (x2, y2) = sequences(6, 4), sequences(second, 4)
    parts = {"x": x2, "shared": weights, "y": y2}
    batches = [{"x": x1, "shared": weights, "y": y1}, {key: parts[key] for key in keys}]
    result = estimate(
        model,
        batches,
        lambda batch: model(batch["x"] * batch["shared"][:, None]),
        labels="true",
        targets=lambda batch: batch["y"],
    )
    x, y = torch.cat([x1, x2]), torch.cat([y1, y2])
    assert_matches(result.values, empirical_fisher(model, x * weights[:, None], y))


@pytest.mark.parametrize("labels", ["true", "exact"])
@pytest.mark.parametrize("second", [4, 5])
def test_batch_with_other_keys_of_the_same_number(second, labels):
    """What was shared is now a matter of each sample; without labels no shape tells."""
    model = Sequence(flattened)
    shared, own = torch.rand(4, 1, dtype=torch.float64) + 0.5, torch.rand(second, 1, 1, dtype=torch.float64) + 0.5
    (x1, y1), (x2, y2) = sequences(6, 4), sequences(second, 4)
    result = estimate(
        model,
        [{"x": x1, "shared": shared, "y": y1}, {"x": x2, "own": own, "y": y2}],
        lambda batch: model(batch["x"] * (batch["own"] if "own" in batch else batch["shared"])),
        labels=labels,
        targets=lambda batch: batch["y"],
    )
    x, y = torch.cat([x1 * shared, x2 * own]), torch.cat([y1, y2])
    assert_matches(result.values, estimate(model, zip(x.split(1), y.split(1), strict=True), labels=labels).values)


def test_bags_with_offsets():
    """Samples of different lengths in one flat tensor."""
    model = randomise(nn.Sequential(nn.EmbeddingBag(6, 4, mode="sum"), nn.Tanh(), nn.Linear(4, 3))).double()
    batch = SimpleNamespace(tokens=torch.randint(6, (12,)), offsets=torch.tensor([0, 3, 4, 9]))
    y = torch.tensor([0, 1, 2, 1])

    def forward(batch):
        return model[1:](model[0](batch.tokens, batch.offsets))

    result = estimate(model, [(batch, y)], forward, labels="true")
    twin, parameters = reference(model)
    bags = batch.tokens.tensor_split(batch.offsets[1:])
    expected = mean_over(
        range(4), lambda i: squares(parameters, cross_entropy_score(twin, bags[i][None], y[i : i + 1]))
    )
    assert_matches(result.values, expected)
    assert result.ways["2.weight"] == "rule Linear.weight"
