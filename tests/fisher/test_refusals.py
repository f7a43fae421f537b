"""Each kind of bad input gets one exception that says what to do, and leaves everything as it was."""

import warnings

import pytest
import torch
from torch import nn

from bitfreeze import BLIP, Rules
from bitfreeze.fisher import estimate
from bitfreeze.likelihoods import Bernoulli, Categorical, Gaussian
from support.networks import WIDTH, inputs, network
from support.truth import unchanged

N = 6
NAN, INF = float("nan"), float("inf")


def refuses(error, sentence, model, data, forward=None, **options):
    with unchanged(model), pytest.raises(error, match=sentence):
        estimate(model, data, forward, **options)


@pytest.fixture
def model():
    return network(3).train()


@pytest.fixture
def x():
    return inputs(N)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("name", ["0.weight", "2.bias"])
@pytest.mark.parametrize("labels", ["sample", "exact", "true"])
def test_weights_that_are_not_finite(model, x, value, name, labels):
    if name == "0.weight" and value == INF:
        value = NAN  # tanh makes a number of it again
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = value
    refuses(
        ValueError, "not finite; look for NaN or infinite weights", model, [(x, torch.zeros(N).long())], labels=labels
    )


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_inputs_that_are_not_finite(x, value):
    model = nn.Linear(WIDTH, 3).double()
    x[2, 1] = value
    refuses(ValueError, "infinite weights, inputs or labels", model, [x])


def test_inputs_that_are_not_finite_in_a_later_batch(model, x):
    refuses(ValueError, "not finite", model, [x, x, torch.full_like(x, NAN)])


def test_labels_that_are_not_finite(model, x):
    y = torch.full((N, 3), NAN, dtype=torch.float64)
    refuses(ValueError, "not finite", model, [(x, y)], lambda x: Gaussian(model(x)), labels="true")


def test_gradients_that_are_not_finite(x):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.zeros(WIDTH).double()), nn.Linear(WIDTH, 3).double()

        def forward(self, x):
            return self.head((x * self.scale).abs().sqrt())

    refuses(ValueError, "Fisher of 'scale' is not finite; look for infinite gradients", Root(), [x])


@pytest.mark.parametrize("data", [[], iter(()), (x for x in [])])
def test_no_batches(model, data):
    refuses(ValueError, "at least one sample, got no samples", model, data)


def test_no_samples(model, x):
    refuses(ValueError, "at least one sample, got no samples", model, [x[:0]])


def test_generator_that_was_used_up(model, x):
    data = iter([x])
    estimate(model, data)
    refuses(ValueError, "if data is a generator that is used up, make a new one", model, data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters(model, x, dtype):
    model[2].to(dtype)
    refuses(TypeError, rf"'2.weight' must be .* got {str(dtype)[6:]}.*float32 master weights", model, [x])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("labels", ["sample", "exact"])
def test_half_precision_outputs(model, x, dtype, labels):
    refuses(
        TypeError,
        "must return float32 or float64, got torch.b?float16; leave autocast out",
        model,
        [x],
        lambda x: model(x).to(dtype),
        labels=labels,
    )


def test_autocast_inside_forward():
    model, x = network(3).float(), inputs(N).float()

    def forward(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    refuses(TypeError, "must return float32 or float64, got torch.bfloat16", model, [x], forward)


@pytest.mark.parametrize(
    ("output", "error", "sentence"),
    [
        (lambda out: out[:, :1], ValueError, r"for one yes/no logit return Bernoulli\(logits\)"),
        (lambda out: out[:, 0], ValueError, r"logits must have the shape \[n, C\]"),
        (lambda out: out.sum(), ValueError, r"logits must have the shape \[n, C\]"),
        (lambda out: out[:, None, None], ValueError, r"return Categorical\(logits\) with the classes last"),
        (lambda out: (out, out), TypeError, "forward must return class logits .* got tuple"),
        (lambda out: {"logits": out}, TypeError, "must return class logits .* got dict"),
        (lambda out: None, TypeError, "must return class logits .* got NoneType"),
        (lambda out: out.detach(), ValueError, "does not depend on any watched parameter"),
        (lambda out: torch.zeros(N, 3), ValueError, "does not depend on any watched parameter"),
        (lambda out: Categorical(out, torch.ones(N, 3)), ValueError, "mask must have the shape"),
    ],
)
def test_outputs(model, x, output, error, sentence):
    refuses(error, sentence, model, [x], lambda x: output(model(x)))


def test_forward_of_another_model(model, x):
    other = network(3)
    refuses(ValueError, "check that forward calls the watched model", model, [x], other)


def test_forward_without_gradients(model, x):
    refuses(ValueError, r"without torch.no_grad\(\)", model, [x], torch.no_grad()(model.forward))


def test_output_does_not_depend_on_the_watched_part(model, x):
    whole = nn.ModuleDict({"used": model, "unused": nn.Linear(2, 2)}).double()
    refuses(ValueError, "does not depend on any watched parameter", whole, [x], model, watch=whole["unused"])


@pytest.mark.parametrize("data", [torch.zeros(N, WIDTH), {"x": torch.zeros(N, WIDTH)}, "text"])
def test_one_batch_instead_of_many(model, data):
    refuses(TypeError, f"got a {type(data).__name__}; wrap a single batch in a list", model, data)


@pytest.mark.parametrize("samples", [0, -3])
def test_number_of_samples(model, x, samples):
    refuses(ValueError, f"samples must be a whole number of at least 1, got {samples}", model, [x], samples=samples)


@pytest.mark.parametrize("labels", ["empirical", "", None])
def test_kind_of_labels(model, x, labels):
    refuses(ValueError, "labels must be 'sample', 'exact' or 'true', got", model, [x], labels=labels)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"x": x}])
def test_true_labels_without_labels(model, x, wrap):
    def forward(batch):
        return model(batch["x"] if isinstance(batch, dict) else batch)

    refuses(ValueError, "labels='true' needs labels.*or targets=", model, [wrap(x)], forward, labels="true")


def test_true_labels_of_another_shape(model, x):
    refuses(ValueError, "labels must have the shape", model, [(x, torch.zeros(N, 2).long())], labels="true")


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda out: Categorical(out.repeat(1, 2000)),
        lambda out: out[:, None].expand(N, 2000, 3),
        lambda out: Bernoulli(out.repeat(1, 2000)),
        lambda out: Gaussian(out.repeat(1, 1000), out.repeat(1, 1000).exp()),
    ],
)
def test_exact_labels_over_too_much(model, x, likelihood):
    refuses(
        ValueError,
        "backward passes per batch, got 6000; use labels='sample'",
        model,
        [x],
        lambda x: likelihood(model(x)),
        labels="exact",
    )


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_batch_norm_without_running_statistics(x, kind):
    model = nn.Sequential(nn.Linear(WIDTH, 4), kind(4, track_running_stats=False), nn.Linear(4, 3)).double()
    refuses(ValueError, "'1' normalises with the statistics of the batch.*GroupNorm", model, [x])


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_gradients_scaled_by_frequency(kind):
    model = nn.Sequential(kind(5, 4, scale_grad_by_freq=True), nn.Flatten(), nn.LazyLinear(3))
    tokens = torch.randint(5, (N, 3))
    model(tokens)
    refuses(ValueError, "'0' scales gradients by frequency.*; use scale_grad_by_freq=False", model, [tokens])


def test_watch(model, x):
    refuses(ValueError, "of the model, got '3.weight'", model, [x], watch="3.weight")
    refuses(ValueError, "watch must be part of the model, got", model, [x], watch=nn.Linear(2, 2))
    refuses(ValueError, "at least one parameter, got none", model, [x], watch=[])
    refuses(
        TypeError,
        "watch must be a submodule, a name, or a list of these, got Parameter; ",
        model,
        [x],
        watch=[model[0].weight],
    )


def test_probabilities_in_place_of_logits_are_noticed(model, x):
    with pytest.warns(UserWarning, match="look like probabilities .*; leave the softmax out of forward"):
        estimate(model, [x], lambda x: model(x).softmax(-1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate(model, [x], lambda x: model(x).log_softmax(-1))
        estimate(model, [x], lambda x: model(x).sigmoid())  # bounded, but no shares of a whole
        estimate(model, [x], lambda x: Bernoulli(model(x)))


def test_a_model_that_takes_more_than_the_input_is_told_of_forward(x):
    class Headed(nn.Linear):
        def forward(self, x, task):
            return super().forward(x)

    with pytest.raises(TypeError, match="missing 1 required") as caught:
        estimate(Headed(WIDTH, 3).double(), [x])
    assert "pass forward=, such as forward=lambda x: model(x, task)" in caught.value.__notes__[0]


ARGUMENTS = {
    "forward": ("a", "forward must be a function, got 'a'"),
    "targets": ("y", "targets must be a function, got 'y'"),
    "progress": (True, "progress must be a function, got True"),
    "generator": (0, r"generator must be a torch.Generator, got 0; make one with torch.Generator\(\)"),
    "distributed": ("no", "distributed must be True or False, got 'no'"),
    "samples": ("all", "samples must be a whole number of at least 1, got 'all'"),
    "memory_bytes": ("1G", "memory_bytes must be a whole number of at least 0, got '1G'"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("rules", ["fisher", "directions", "strict"])
def test_arguments_of_another_kind(model, x, name, rules):
    value, sentence = ARGUMENTS[name]
    act = estimate if rules == "fisher" else BLIP(model, rules=getattr(Rules, rules)()).consolidate
    first = (model, [x]) if rules == "fisher" else ([x],)
    with unchanged(model), pytest.raises((TypeError, ValueError), match=sentence):
        act(*first, **{name: value})


@pytest.mark.parametrize("data", [None, 3])
def test_data_that_are_nothing(model, data):
    refuses(TypeError, f"data must be an iterable of batches, such as a DataLoader, got {data}", model, data)


def test_labels_that_are_no_numbers(model, x):
    refuses(TypeError, "labels must be numbers, got list of other things", model, [(x, ["cat"] * N)], labels="true")


def test_labels_that_are_no_classes(model, x):
    real = torch.full((N,), 0.5)
    with pytest.warns(UserWarning, match="real numbers"):
        refuses(ValueError, "class numbers from 0 to 2, got real", model, [(x, real)], labels="true")


@pytest.mark.parametrize("scale", ["1", 0, -1.0, None])
def test_scales_that_are_no_deviations(scale):
    with pytest.raises(ValueError, match="scale must be a number above 0, or a tensor of them, got"):
        Gaussian(torch.zeros(3), scale=scale)
