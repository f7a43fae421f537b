"""Every rule against autograd, one sample at a time."""

import pytest
import torch
from torch import nn

from bitfreeze.fisher import estimate
from support.layer_cases import CONVOLUTIONS
from support.truth import Readout, assert_matches, empirical_fisher, randomise

DTYPES = [torch.float64, torch.float32]
SAMPLES = 6


def check(model, x, dtype, rule):
    """The estimate equals the truth, and by the rule, not by a fallback."""
    randomise(model)
    model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    y = torch.randint(3, (len(x),))
    result = estimate(model, [(x[:4], y[:4]), (x[4:], y[4:])], labels="true")
    assert_matches(result.values, empirical_fisher(model, x, y))
    assert result.ways == {name: f"rule {rule}.{name.rpartition('.')[2]}" for name in result.values}


def check_layer(layer, shape, dtype, rule=None):
    x = torch.randn(SAMPLES, *shape)
    check(Readout(layer, x), x, dtype, rule or type(layer).__name__)


def check_network(model, x):
    y = torch.arange(len(x)) % 3
    result = estimate(model, [(x, y)], labels="true")
    assert_matches(result.values, empirical_fisher(model, x, y))
    assert all(rule.startswith("rule ") for rule in result.ways.values())


def named(*cases):
    """Parametrise over (layer, shape of one sample): each is built in the test, so that seeds are the test's own."""
    return pytest.mark.parametrize(
        ("build", "shape"), [pytest.param(build, shape, id=f"{name}-{shape}") for name, build, shape in cases]
    )


dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])


@dtypes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (1, 5), (2, 3, 5)])
def test_linear(shape, bias, dtype):
    check_layer(nn.Linear(5, 4, bias=bias), shape, dtype)


TRANSPOSED = [
    ("plain", nn.ConvTranspose1d, (2, 3, 3), {}, (2, 5)),
    ("plain", nn.ConvTranspose2d, (2, 3, (3, 2)), {"bias": False}, (2, 3, 4)),
    ("plain", nn.ConvTranspose3d, (2, 3, 2), {}, (2, 2, 3, 2)),
    ("stride", nn.ConvTranspose2d, (2, 3, 3), {"stride": (2, 3)}, (2, 3, 3)),
    ("padding", nn.ConvTranspose2d, (2, 3, 3), {"stride": 2, "padding": (1, 2)}, (2, 4, 4)),
    ("output-padding", nn.ConvTranspose1d, (2, 3, 3), {"stride": 3, "padding": 1, "output_padding": 2}, (2, 4)),
    ("output-padding", nn.ConvTranspose2d, (2, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 3, 3)),
    ("output-padding", nn.ConvTranspose3d, (2, 2, 2), {"stride": 2, "output_padding": 1}, (2, 2, 2, 2)),
    ("wide-output-padding", nn.ConvTranspose1d, (2, 3, 2), {"dilation": 4, "output_padding": 3}, (2, 4)),
    (
        "wide-output-padding",
        nn.ConvTranspose2d,
        (2, 3, 2),
        {"stride": 2, "dilation": 3, "output_padding": 2, "padding": 1},
        (2, 3, 3),
    ),
    ("groups", nn.ConvTranspose1d, (4, 6, 3), {"groups": 2}, (4, 4)),
    ("groups", nn.ConvTranspose2d, (4, 6, 3), {"groups": 2, "stride": 2}, (4, 3, 3)),
    ("depthwise", nn.ConvTranspose2d, (3, 3, 3), {"groups": 3}, (3, 3, 3)),
    ("dilation", nn.ConvTranspose2d, (2, 3, 3), {"dilation": (2, 1)}, (2, 3, 3)),
    ("one-input-position", nn.ConvTranspose2d, (4, 2, 3), {"groups": 2}, (4, 1, 1)),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's own
@dtypes
@pytest.mark.parametrize(
    ("kind", "sizes", "options", "shape"),
    [pytest.param(*case, id=f"{case[0].__name__}-{name}") for name, *case in CONVOLUTIONS + TRANSPOSED],
)
def test_convolution(kind, sizes, options, shape, dtype):
    check_layer(kind(*sizes, **options), shape, dtype)


@dtypes
@named(
    ("BatchNorm1d", lambda: nn.BatchNorm1d(4), (4,)),
    ("BatchNorm1d", lambda: nn.BatchNorm1d(4, eps=0.1), (4, 5)),
    ("BatchNorm2d", lambda: nn.BatchNorm2d(3), (3, 2, 4)),
    ("BatchNorm3d", lambda: nn.BatchNorm3d(2), (2, 2, 3, 2)),
    ("LayerNorm", lambda: nn.LayerNorm(5), (5,)),
    ("LayerNorm", lambda: nn.LayerNorm(5, eps=0.1), (4, 5)),
    ("LayerNorm-no-bias", lambda: nn.LayerNorm(5, bias=False), (4, 5)),
    ("LayerNorm-2-dims", lambda: nn.LayerNorm((3, 4)), (3, 4)),
    ("LayerNorm-2-dims", lambda: nn.LayerNorm((3, 4)), (2, 3, 4)),
    ("GroupNorm", lambda: nn.GroupNorm(2, 4), (4,)),
    ("GroupNorm", lambda: nn.GroupNorm(2, 4, eps=0.1), (4, 3)),
    ("GroupNorm", lambda: nn.GroupNorm(4, 4), (4, 3, 2)),
    ("RMSNorm", lambda: nn.RMSNorm(5), (5,)),
    ("RMSNorm", lambda: nn.RMSNorm(5, eps=0.1), (4, 5)),
    ("RMSNorm-2-dims", lambda: nn.RMSNorm((3, 4)), (2, 3, 4)),
)
def test_normalisation(build, shape, dtype):
    check_layer(build(), shape, dtype)


@dtypes
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"sparse": True}, {"sparse": True, "padding_idx": 0}])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (1,), ()], ids=str)
def test_embedding_with_repeated_tokens(shape, options, dtype):
    x = torch.randint(5, (SAMPLES, *shape))
    check(Readout(nn.Embedding(5, 4, **options), x), x, dtype, "Embedding")


@dtypes
@named(
    ("Conv2d-padded", lambda: nn.Conv2d(3, 3, 5, groups=3, padding=2), (3, 2, 3)),  # kernel larger than the picture
    ("Conv2d-strided", lambda: nn.Conv2d(3, 3, 3, groups=3, stride=2, padding=1), (3, 6, 5)),
    (
        "Conv2d-steps",
        lambda: nn.Conv2d(3, 3, (2, 3), groups=3, stride=(3, 1), dilation=(2, 1), padding=(3, 0)),
        (3, 5, 4),
    ),
    ("Conv2d-same", lambda: nn.Conv2d(3, 3, 3, groups=3, padding="same"), (3, 4, 4)),
    ("Conv2d-circular", lambda: nn.Conv2d(3, 3, 3, groups=3, padding=1, padding_mode="circular"), (3, 4, 4)),
    ("Conv2d-many-positions", lambda: nn.Conv2d(2, 2, 3, groups=2, padding=1), (2, 11, 11)),
    ("Conv1d", lambda: nn.Conv1d(3, 3, 5, groups=3, padding=4, stride=3), (3, 6)),
    ("Conv3d", lambda: nn.Conv3d(2, 2, 3, groups=2, padding=1), (2, 2, 3, 2)),
)
def test_depthwise_convolution(build, shape, dtype):
    check_layer(build(), shape, dtype)


@dtypes
@named(
    ("Conv2d", lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 5, 5)),
    ("Conv2d-depthwise", lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (4, 5, 5)),
    ("ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 6, 3), (4, 5, 5)),
    ("BatchNorm2d", lambda: nn.BatchNorm2d(4), (4, 5, 5)),
    ("GroupNorm", lambda: nn.GroupNorm(2, 4), (4, 5, 5)),
)
@pytest.mark.parametrize("weights_too", [False, True])
def test_channels_last(build, shape, weights_too, dtype):
    x = torch.randn(SAMPLES, *shape).to(memory_format=torch.channels_last)
    # behind another layer: torch itself crashes on GroupNorm of channels_last data that need no gradient
    model = randomise(Readout(nn.Sequential(nn.Conv2d(4, 4, 1), build()), x)).to(dtype)
    if weights_too:
        model.to(memory_format=torch.channels_last)
    check_network(model, x.to(dtype))


def expanded(x):
    return x[:1].expand_as(x)


def strided(x):
    """The same values, not contiguous and not at the start of their storage."""
    return torch.stack([torch.zeros_like(x), x], dim=-1)[..., 1]


class Relaid(nn.Module):
    def __init__(self, layer, lay_out):
        super().__init__()
        self.inner, self.lay_out = layer, lay_out

    def forward(self, x):
        return self.inner(self.lay_out(x))


@dtypes
@pytest.mark.parametrize("lay_out", [strided, expanded])
@named(
    ("Linear", lambda: nn.Linear(5, 4), (3, 5)),
    ("Conv2d", lambda: nn.Conv2d(2, 3, 2), (2, 4, 5)),
    ("ConvTranspose1d", lambda: nn.ConvTranspose1d(3, 2, 2), (3, 5)),
    ("BatchNorm1d", lambda: nn.BatchNorm1d(3), (3, 5)),
)
def test_input_that_is_a_view(build, shape, lay_out, dtype):
    x = torch.randn(1, *shape).repeat(SAMPLES, *[1] * len(shape))  # the same sample, with other labels
    check_network(randomise(Readout(Relaid(build(), lay_out), x)).to(dtype), x.to(dtype))


class Residual(nn.Module):
    """Layers with in-place activations right after them, and connections around them."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.skip = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(2, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = nn.functional.leaky_relu(self.norm(self.conv1(x)), 0.1, inplace=True)
        h = self.conv2(h)
        h += self.skip(x)
        return self.head(h.relu_().mean((2, 3)))


@dtypes
def test_residual_network_with_in_place_activations(dtype):
    check_network(randomise(Residual()).to(dtype), torch.randn(SAMPLES, 2, 5, 5, dtype=dtype))


@dtypes
@pytest.mark.parametrize("act", [nn.ReLU, nn.ELU, nn.Hardtanh])
def test_in_place_activation_right_after_a_layer(act, dtype):
    layers = nn.Linear(5, 8), act(inplace=True), nn.Linear(8, 6), act(inplace=True), nn.Linear(6, 3)
    check_network(randomise(nn.Sequential(*layers)).to(dtype), torch.randn(SAMPLES, 5, dtype=dtype))


@pytest.mark.parametrize("hook", ["forward", "pre", "backward"])
def test_hooks_of_the_user_on_a_layer(hook):
    model = randomise(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))).double()
    if hook == "forward":
        model[0].register_forward_hook(lambda layer, args, output: 3 * output, prepend=True)
    elif hook == "pre":
        model[0].register_forward_pre_hook(lambda layer, args: (args[0].sin(),))
    else:
        model[2].register_full_backward_hook(lambda layer, given, received: None)
    check_network(model, torch.randn(SAMPLES, 5, dtype=torch.float64))
