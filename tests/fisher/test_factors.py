"""Factors of layers against autograd, one sample at a time; and joined matrices against forward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.fisher import estimate, register_factors
from bitfreeze.fisher.factors import Factors, _makers, find_factors, joined, joined_shape, write_joined_
from bitfreeze.fisher.memory import memory_limit
from bitfreeze.fisher.statistics import MeanInputs, SecondMoments, Statistic
from bitfreeze.fisher.turned_fisher import TurnedFisher
from support.layer_cases import CONVOLUTIONS
from support.networks import (
    WIDTH,
    CalledTwice,
    CosineLinear,
    NeverCalled,
    Pooled,
    Sequence,
    TiedHead,
    flattened,
    normalised,
    scrambled,
    sequences,
    straight,
    time_first,
)
from support.per_sample import assert_equal, joined_gradients, readout

LAYERS = [
    *(pytest.param(lambda b=b: nn.Linear(5, 4, bias=b), s, id=f"Linear-{s}-{b}")
      for b in (True, False) for s in [(5,), (4, 5), (1, 5), (2, 3, 5)]),
    *(pytest.param(lambda c=c, b=b: c[0](*c[1], **{**c[2], "bias": b}), c[3], id=f"{c[0].__name__}-{name}-{b}")
      for b in (True, False) for name, *c in CONVOLUTIONS),
]  # fmt: skip
layers = pytest.mark.parametrize(("build", "shape"), LAYERS)
same_padding = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


class Gradients(Statistic):
    """The gradient of each sample, from the factors."""

    def __init__(self, layer):
        super().__init__(layer)
        self.rows, self.largest = [], 0

    def add(self, factors):
        for x, delta in factors.chunks():
            assert x.shape[2:] == (factors.positions, factors.inputs_width)
            assert delta.shape[1:] == (factors.groups, factors.positions, factors.outputs_width)
            self.largest = max(self.largest, x.nbytes + delta.nbytes)
            self.rows.append(torch.einsum("nglo,ngli->ngoi", delta, x))


@same_padding
@layers
def test_factors_give_the_gradient_of_each_sample(build, shape):
    layer = build()
    model, x, y = readout(layer, shape)
    found = Gradients(layer)
    result = estimate(model, [(x[:4], y[:4]), (x[4:], y[4:])], labels="true", statistics={layer: [found]})
    assert result.statistics == {layer: ""}
    assert_equal(torch.cat(found.rows), joined_gradients(model, layer, x, y))


@same_padding
@layers
def test_joined_matrix_is_what_forward_computes_with(build, shape):
    """The layer's output at each position is the joined matrix times the input there."""
    layer = build().double()
    a = torch.randn(2, *shape, dtype=torch.float64)
    z = layer(a)
    matrix = joined(layer)
    assert matrix.shape == joined_shape(layer)
    factors = find_factors(layer)[0](layer, a, z)
    product = torch.einsum("goi,ngli->nglo", matrix, factors.inputs(slice(None)))
    assert_equal(product, factors.deltas.detach())
    write_joined_(layer, 2 * matrix)
    torch.testing.assert_close(layer(a), 2 * z)
    assert_equal(joined(layer), 2 * matrix)


def test_joined_matrix_is_a_copy():
    layer = nn.Linear(3, 2, bias=False)
    joined(layer).zero_()
    assert layer.weight.all()


@pytest.mark.parametrize("shape", [(4, 5), (200, 5)])
def test_memory_of_chunks_is_bounded(shape):
    layer = nn.Linear(5, 7)
    model, x, y = readout(layer, shape, samples=64)
    found, limit = Gradients(layer), 100_000
    estimate(model, [(x, y)], labels="true", statistics={layer: [found]}, memory_bytes=limit)
    assert_equal(torch.cat(found.rows), joined_gradients(model, layer, x, y))
    assert limit / 4 < found.largest <= limit if shape[0] > 4 else found.largest <= limit


def test_wide_convolution_stays_within_the_limit():
    layer = nn.Conv2d(8, 4, 3, padding=1).double()
    a, delta = torch.randn(32, 8, 16, 16).double(), torch.randn(32, 4, 16, 16).double()
    factors = find_factors(layer)[0](layer, a, delta)
    with memory_limit(2**20):
        sizes = [x.nbytes + d.nbytes for x, d in factors.chunks()]
    assert len(sizes) == 6
    assert max(sizes) <= 2**20


REFUSED = {
    "called twice": (CalledTwice, lambda m: m.layer, "called 2 times"),
    "beside its module": (NeverCalled, lambda m: m.store, "used outside its module"),
    "rows": (lambda: Sequence(flattened), lambda m: m.layer, "the first axis of its input is not the sample"),
    "time first": (lambda: Sequence(time_first), lambda m: m.layer, "its factors disagree with autograd on weight"),
    "scrambled": (lambda: Sequence(scrambled), lambda m: m.layer, "its factors disagree with autograd on weight"),
    "own forward": (lambda: Pooled(CosineLinear(WIDTH, WIDTH)), lambda m: m.block, "overrides forward"),
    "computed": (lambda: normalised(nn.utils.parametrizations.weight_norm), lambda m: m.block, "computed from other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layer_that_gets_no_statistics_says_why(name):
    build, layer_of, reason = REFUSED[name]
    model = build().double()
    layer, steps = layer_of(model), 3
    result = estimate(model, [sequences(8, steps)], labels="true", statistics={layer: [MeanInputs(layer)]})
    assert reason in result.statistics[layer]


def test_tied_weight_is_refused():
    model = TiedHead().double()
    x = torch.randint(5, (6, 4))
    result = estimate(model, [x], statistics={model.head: [MeanInputs(model.head)], model.body: []})
    assert "is held in 2 places" in result.statistics[model.head]
    assert result.statistics[model.body] == ""


def test_wrong_factors_are_refused():
    class Doubled(nn.Linear):
        def forward(self, x):
            return F.linear(2 * x, self.weight, self.bias)

    try:
        register_factors(Doubled)(_makers[nn.Linear].make)
        layer = Doubled(WIDTH, 4)
        model = Sequence(straight, layer)
        result = estimate(model, [sequences(6)], labels="true", statistics={layer: [MeanInputs(layer)]})
        assert result.statistics[layer] == "its factors disagree with autograd on weight"

        @register_factors(Doubled)
        def right(layer, a, delta):
            plain = _makers[nn.Linear].make(layer, 2 * a, delta)

            def inputs(rows):
                return plain.inputs(rows)

            return Factors(inputs, plain.deltas, plain.inputs_width)

        result = estimate(model, [sequences(6)], labels="true", statistics={layer: [MeanInputs(layer)]})
        assert result.statistics[layer] == ""
    finally:
        del _makers[Doubled]


def test_layer_that_a_later_batch_calls_differently_is_refused():
    model = Sequence(lambda layer, x: flattened(layer, x) if len(x) == 5 else layer(x))
    result = estimate(model, [sequences(8), sequences(5)], statistics={model.layer: [MeanInputs(model.layer)]})
    assert result.statistics[model.layer] == "called differently in a later batch"


def test_layer_that_a_later_batch_uses_outside_its_module_is_refused():
    def around(layer, x):
        return F.linear(x, layer.weight, layer.bias) if len(x) == 5 else layer(x)

    model = Sequence(around)
    result = estimate(model, [sequences(8), sequences(5)], statistics={model.layer: [MeanInputs(model.layer)]})
    assert result.statistics[model.layer] == "used outside its module in a later batch"


def test_layer_without_gradients_in_the_check_is_refused_once_it_has_some():
    def around(layer, x):
        return layer(x) * (x.sum((1, 2), keepdim=True) > 100)  # zero for all but the marked samples

    model = Sequence(around)
    quiet, (x, y) = sequences(6), sequences(6)
    x[2] += 100
    for batches, reason in (([quiet, quiet], ""), ([quiet, (x, y)], "its gradients are zero in the samples")):
        found = estimate(model, batches, labels="true", statistics={model.layer: [MeanInputs(model.layer)]})
        assert found.statistics[model.layer].startswith(reason)
        assert bool(found.statistics[model.layer]) == bool(reason)


def test_parameters_that_are_skipped_cost_nothing_but_their_layers_are_measured():
    model = Sequence(straight)
    batch, every = sequences(6), ["layer.weight", "layer.bias", "head.weight", "head.bias"]
    squares = TurnedFisher(model.layer, None, None)
    found = estimate(model, [batch], labels="true", skip=every[:2], statistics={model.layer: [squares]})
    whole = estimate(model, [batch], labels="true").values
    assert list(found.values) == every[2:]
    assert_equal(squares.totals["turned"][0, :, :-1] / 6, whole["layer.weight"])
    assert_equal(squares.totals["turned"][0, :, -1] / 6, whole["layer.bias"])
    assert estimate(model, [batch], skip=every, statistics={model.layer: [squares]}).values == {}


def test_layer_outside_watch_is_measured_and_left_as_it_was():
    model = Sequence(straight)
    model.layer.requires_grad_(False)
    squares = TurnedFisher(model.layer, None, None)
    found = estimate(model, [sequences(6)], watch=model.head, statistics={model.layer: [squares]})
    assert found.statistics[model.layer] == ""
    assert squares.totals["turned"].all()
    assert not any(p.requires_grad for p in model.layer.parameters())
    assert found.values.keys() == {"head.weight", "head.bias"}


def test_errors_name_what_is_wrong():
    model = Sequence(straight)
    with pytest.raises(ValueError, match="skip must name watched parameters, got 'nothing'"):
        estimate(model, [sequences(6)], skip=["nothing"])
    with pytest.raises(ValueError, match="statistics must be of layers of the model, got a Linear outside it"):
        estimate(model, [sequences(6)], statistics={nn.Linear(2, 2): []})
    with pytest.raises(TypeError, match="layer must have factors, got a LayerNorm"):
        SecondMoments(nn.LayerNorm(3))
