"""Statistics of layers against brute force and against autograd on an explicitly turned layer."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from bitfreeze.fisher import estimate
from bitfreeze.fisher.factors import joined, joined_shape, split_joined
from bitfreeze.fisher.statistics import MeanInputs, ReachedPositions, SecondMoments
from bitfreeze.fisher.turned_fisher import TurnedFisher
from bitfreeze.likelihoods import Categorical
from support.networks import WIDTH, Sequence, straight
from support.per_sample import assert_equal, joined_gradients, orthonormal, readout
from support.truth import empirical_fisher, randomise

CASES = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "linear, no bias": (lambda: nn.Linear(6, 5, bias=False), (6,)),
    "linear, 2 positions": (lambda: nn.Linear(6, 5), (2, 6)),
    "linear, 30 positions": (lambda: nn.Linear(6, 5), (5, 6, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3, padding=1, padding_mode="circular"), (3, 7)),
    "conv2d": (lambda: nn.Conv2d(3, 5, 2, stride=2, dilation=2), (3, 9, 8)),
    "conv2d, groups": (lambda: nn.Conv2d(4, 6, 2, groups=2, padding=1), (4, 5, 4)),
    "conv2d, one position, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, bias=False), (2, 3, 3, 2)),
}
cases = pytest.mark.parametrize("case", CASES)


def measured(case, *make, samples=6, sizes=(4, 2), **options):
    """Model, layer, data, labels and the filled statistics."""
    build, shape = CASES[case]
    layer = build()
    model, x, y = readout(layer, shape, samples)
    statistics = [one(layer) for one in make]
    batches = list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))
    result = estimate(model, batches, statistics={layer: statistics}, **{"labels": "true", **options})
    assert result.statistics == {layer: ""}
    assert all(one.samples == samples for one in statistics)
    return model, layer, x, y, statistics


class Turned(nn.Module):
    """The layer with a parameter W' in place of its own: [W b] = V W' U^T."""

    def __init__(self, model, layer, u, v):
        super().__init__()
        self.model, self.layer, self.u, self.v = [model], [layer], u, v
        self.turned = nn.Parameter(v.mT @ joined(layer) @ u)

    def forward(self, x):
        model, layer = self.model[0], self.layer[0]
        names = {name: f"layer.{name}" for name, _ in layer.named_parameters()}
        values = split_joined(layer, self.v @ self.turned @ self.u.mT)
        return functional_call(model, {names[name]: value for name, value in values.items()}, (x,))


@cases
def test_turned_fisher_is_that_of_an_explicitly_turned_layer(case):
    build, _ = CASES[case]
    groups, outputs, inputs = joined_shape(build())
    u, v = orthonormal(groups, inputs, inputs), orthonormal(groups, outputs, outputs)
    model, layer, x, y, [found] = measured(case, lambda layer: TurnedFisher(layer, u, v, others=True))
    assert "rest" not in found.totals
    truth = empirical_fisher(Turned(model, layer, u, v), x, y)["turned"]
    assert_equal(found.totals["turned"] / found.samples, truth)


@cases
@pytest.mark.parametrize("first", [True, False], ids=["turn first", "turn last"])
@pytest.mark.parametrize("sides", ["both", "inputs", "outputs", "none of the inputs"])
def test_some_directions_and_the_rest_by_brute_force(case, sides, first, monkeypatch):
    monkeypatch.setattr(TurnedFisher, "_turn_first", lambda self, positions: first)
    groups, outputs, inputs = joined_shape(CASES[case][0]())
    u, v = orthonormal(groups, inputs, 3), orthonormal(groups, outputs, 2)
    u, v = {"both": (u, v), "inputs": (u, None), "outputs": (None, v), "none of the inputs": (u[..., :0], v)}[sides]
    model, layer, x, y, [found] = measured(case, lambda layer: TurnedFisher(layer, u, v, others=True))
    gradients = joined_gradients(model, layer, x, y)
    u = torch.eye(inputs, dtype=torch.float64) if u is None else u
    v = torch.eye(outputs, dtype=torch.float64) if v is None else v
    turned = v.mT @ gradients @ u
    if turned.numel():
        assert_equal(found.totals["turned"], turned.square().sum(0))
    assert found.totals["turned"].shape == turned.shape[1:]
    others = {"by_output": gradients @ u - v @ turned, "rest": gradients - gradients @ u @ u.mT}
    parts = {"inputs": {"rest"}, "outputs": {"by_output"}}.get(sides, {"by_output", "rest"})
    assert found.totals.keys() == {"turned", *parts}
    for key in parts:
        assert found.totals[key].shape == others[key].shape[1:]
        if others[key].numel():
            assert_equal(found.totals[key], others[key].square().sum(0))


def test_the_cheaper_order_is_chosen():
    """Many positions: sum over them first. Few positions of a wide layer: turn first."""
    layer = nn.Linear(100, 80)
    some = TurnedFisher(layer, orthonormal(1, 101, 10), orthonormal(1, 80, 10), others=True)
    assert some._turn_first(2)
    assert not some._turn_first(1000)


def unfolded(layer, a):
    """Input of each position [n, g, l, i] of a plain Conv2d, by torch's own unfold."""
    patches = nn.functional.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    patches = patches.unflatten(1, (layer.groups, -1)).mT
    return torch.cat([patches, torch.ones_like(patches[..., :1])], -1)


def test_second_moments_of_a_convolution_by_brute_force():
    layer = nn.Conv2d(4, 6, 3, groups=2, padding=1, stride=2)
    model, x, y = readout(layer, (4, 5, 6))
    moments, mean = SecondMoments(layer), MeanInputs(layer)
    estimate(model, [(x[:1], y[:1]), (x[1:], y[1:])], labels="true", statistics={layer: [moments, mean]})
    z = layer(x)
    score = -nn.functional.cross_entropy(torch.tanh(z).flatten(1) @ model.projection, y, reduction="sum")
    delta = torch.autograd.grad(score, z)[0].reshape(6, 2, 3, -1).mT
    inputs = unfolded(layer, x)
    assert_equal(moments.inputs.total, torch.einsum("ngli,nglj->gij", inputs, inputs))
    assert_equal(moments.outputs.total, torch.einsum("nglo,nglp->gop", delta, delta))
    assert_equal(mean.mean(), inputs.mean((0, 2)))
    (u, strengths), (v, _) = moments.strongest_inputs(3), moments.strongest_outputs(3)
    values, vectors = torch.linalg.eigh(moments.inputs.total / 6)
    assert_equal(strengths, values.flip(-1)[:, :3])
    assert_equal((u.mT @ vectors.flip(-1)[..., :3]).abs(), torch.eye(3).double().expand(2, 3, 3), 1e-6)
    assert v.shape == (2, 3, 3)


class Masked(Sequence):
    """Class scores at each token, of which only some count."""

    def __init__(self, mask):
        super().__init__(straight)
        self.mask = mask

    def forward(self, x):
        return Categorical(self.head(torch.tanh(self.layer(x))), self.mask[: len(x)])


@pytest.mark.parametrize("labels", ["sample", "exact"])
def test_masked_tokens_are_left_out_of_moments_but_not_of_the_mean(labels):
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    model, x = Masked(mask), torch.randn(3, 4, WIDTH, dtype=torch.float64)
    moments, mean = SecondMoments(model.layer), MeanInputs(model.layer)
    result = estimate(model, [x], labels=labels, statistics={model.layer: [moments, mean]})
    assert result.statistics[model.layer] == ""
    rows = torch.cat([x, torch.ones_like(x[..., :1])], -1)
    assert_equal(moments.inputs.total[0], rows[mask].mT @ rows[mask])
    assert_equal(mean.mean()[0], rows.mean((0, 1)))


def test_exact_labels_weigh_each_label_by_its_probability():
    layer = nn.Linear(5, 4)
    model, x, _ = readout(layer, (3, 5))
    u, v = orthonormal(1, 6, 2), orthonormal(1, 4, 2)
    moments, turned = SecondMoments(layer), TurnedFisher(layer, u, v, others=True)
    estimate(model, x.split(4), labels="exact", statistics={layer: [moments, turned]})
    p = model(x).softmax(-1).detach()
    outputs, inside, by_output, rest = 0, 0, 0, 0
    for label in range(3):
        y = torch.full((6,), label)
        z = layer(x)
        score = -nn.functional.cross_entropy(torch.tanh(z).flatten(1) @ model.projection, y, reduction="sum")
        delta = torch.autograd.grad(score, z)[0] * p[:, label].sqrt()[:, None, None]
        outputs = outputs + torch.einsum("nlo,nlp->op", delta, delta)
        gradients = joined_gradients(model, layer, x, y) * p[:, label].sqrt()[:, None, None, None]
        inside = inside + (v.mT @ gradients @ u).square().sum(0)
        by_output = by_output + (gradients @ u - v @ v.mT @ gradients @ u).square().sum(0)
        rest = rest + (gradients - gradients @ u @ u.mT).square().sum(0)
    rows = torch.cat([x, torch.ones_like(x[..., :1])], -1).flatten(0, 1)
    assert_equal(moments.inputs.total[0], rows.mT @ rows)
    assert_equal(moments.outputs.total[0], outputs)
    assert_equal(turned.totals["turned"], inside)
    assert_equal(turned.totals["by_output"], by_output)
    assert_equal(turned.totals["rest"], rest)


@cases
def test_batch_size_does_not_matter(case):
    groups, outputs, inputs = joined_shape(CASES[case][0]())
    u, v = orthonormal(groups, inputs, 3), orthonormal(groups, outputs, 2)

    def make(sizes):
        torch.manual_seed(3)
        makers = SecondMoments, lambda la: SecondMoments(la, widest=2, rows=5), lambda la: TurnedFisher(la, u, v, True)
        return measured(case, *makers, MeanInputs, samples=7, sizes=sizes)[-1]

    whole = make([7])
    for sizes in ([1] * 7, [3, 4], [5, 2]):
        moments, thin, turned, mean = make(sizes)
        assert_equal(moments.inputs.total, whole[0].inputs.total)
        assert_equal(moments.outputs.total, whole[0].outputs.total)
        assert_equal(thin.inputs.rows(), whole[1].inputs.rows())
        assert_equal(thin.outputs.rows(), whole[1].outputs.rows())
        for key, total in turned.totals.items():
            assert_equal(total, whole[2].totals[key])
        assert_equal(mean.mean(), whole[3].mean())


def test_only_the_wanted_samples_count():
    layer = nn.Linear(6, 5)
    model, x, y = readout(layer, (2, 6))
    some, all_of_five = [(SecondMoments(layer), MeanInputs(layer)) for _ in range(2)]
    estimate(model, [(x, y)], labels="true", samples=5, statistics={layer: some})
    estimate(model, [(x[:5], y[:5])], labels="true", statistics={layer: all_of_five})
    assert_equal(some[0].inputs.total, all_of_five[0].inputs.total)
    assert_equal(some[1].mean(), all_of_five[1].mean())


def test_float32_rest_is_exact_where_directions_hold_nearly_everything():
    """The plain square G^2 - 2 G P + P^2 would lose all digits here."""
    torch.manual_seed(0)
    layer = nn.Linear(20, 10, bias=False)
    u, v = orthonormal(1, 20, 3), orthonormal(1, 10, 10)
    model, x, y = readout(layer, (20,))
    x = x @ u[0] @ u[0].mT + 1e-4 * x
    truth = joined_gradients(model, layer, x, y)
    model.float()
    found = TurnedFisher(layer, u.float(), v.float(), others=True)
    estimate(model, [(x.float(), y)], labels="true", statistics={layer: [found]})
    truth = (truth - truth @ u @ u.mT).square().sum(0)
    assert_equal(found.totals["rest"].double(), truth, 1e-2)


def test_directions_must_fit_the_layer():
    with pytest.raises(ValueError, match=r"u must have the shape \[1, 4, k\] with k of at most 4, got \[1, 3, 2\]"):
        TurnedFisher(nn.Linear(3, 2), orthonormal(1, 3, 2), None)
    with pytest.raises(ValueError, match="v must have the shape"):
        TurnedFisher(nn.Linear(3, 2), None, orthonormal(1, 2, 2)[0])


def test_a_model_of_several_layers_is_measured_in_one_pass():
    model = randomise(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.arange(6) % 3
    squares = {layer: [TurnedFisher(layer, None, None)] for layer in (model[0], model[2])}
    fisher = estimate(model, [(x, y)], labels="true", statistics=squares).values
    for k in (0, 2):
        both = torch.cat([fisher[f"{k}.weight"], fisher[f"{k}.bias"][:, None]], 1)
        assert_equal(squares[model[k]][0].totals["turned"][0] / 6, both)


@pytest.mark.parametrize("form", ["single", "first", "last"])
def test_the_other_parts_of_later_samples_come_from_some_of_them_without_bias(monkeypatch, form):
    """With one sample over and over, every form of the sum must give that sample's squares, from fewer samples."""
    monkeypatch.setattr(TurnedFisher, "_turn_first", lambda self, positions: form == "first")
    layer = nn.Linear(5, 4)
    model, x, y = readout(layer, (5,) if form == "single" else (3, 5), samples=1)
    u, v = orthonormal(1, 6, 2), orthonormal(1, 4, 2)
    many, one = TurnedFisher(layer, u, v, others=True), TurnedFisher(layer, u, v, others=True)
    count = 8000
    data = [(x.expand(500, *x.shape[1:]), y.expand(500))] * (count // 500)
    estimate(model, data, labels="true", statistics={layer: [many]})
    estimate(model, [(x, y)], labels="true", statistics={layer: [one]})
    assert_equal(many.totals["turned"] / count, one.totals["turned"], 1e-6)
    found = torch.cat([(many.totals[key] / count / one.totals[key]).flatten() for key in ("by_output", "rest")])
    assert (found - 1).abs().max() < 0.1  # standard deviation 0.03: 1970 samples' worth of chance
    assert found.std() < 1e-6  # all entries come from the same samples
    assert (found - 1).abs().min() > 1e-6


@pytest.mark.parametrize("case", [name for name in CASES if "no bias" not in name and name != "conv3d"])
@pytest.mark.parametrize("labels", ["true", "exact"])
def test_reached_positions_are_those_whose_inputs_take_part_in_the_moment(case, labels):
    """The constant input of a bias adds 1 to the moment's last entry for each of them."""
    *_, (moments, reached) = measured(case, SecondMoments, ReachedPositions, labels=labels)
    assert torch.equal(reached.totals["reached"], moments.inputs.total[:, -1, -1].double())
    assert reached.totals["reached"].min() > 0


def test_positions_without_a_gradient_are_not_reached():
    """A readout that looks at the first two of four positions."""
    layer = nn.Linear(3, 2)
    statistics = [ReachedPositions(layer)]
    model = nn.Sequential(layer)
    batches = [torch.randn(5, 4, 3)]
    estimate(model, batches, lambda x: model(x)[:, :2].sum(1), statistics={layer: statistics})
    assert statistics[0].totals["reached"].tolist() == [10.0]
