"""Convolutions with a forward of their own get the rule of the plain layer for the call that they make inside."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.fisher import estimate
from bitfreeze.fisher.turned_fisher import TurnedFisher
from support.per_sample import assert_equal, joined_gradients, readout
from support.truth import assert_matches, empirical_fisher


class StaticSame(nn.Conv2d):
    """Pads by a module, then convolves without padding."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.static_padding = nn.ZeroPad2d((0, 1, 1, 2))

    def forward(self, x):
        x = self.static_padding(x)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class DynamicSame(nn.Conv2d):
    """Pads by its input's size, and convolves by keywords."""

    def forward(self, x):
        wanted = [-(-size // s) for size, s in zip(x.shape[2:], self.stride, strict=True)]
        pads = []
        for size, out, k, s in zip(x.shape[2:], wanted, self.kernel_size, self.stride, strict=True):
            pad = max((out - 1) * s + k - size, 0)
            pads = [pad // 2, pad - pad // 2, *pads]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, stride=self.stride, groups=self.groups)


class Causal(nn.Conv1d):
    def forward(self, input):
        padded = F.pad(input, (2, 0))
        return self._conv_forward(padded, self.weight, self.bias)


class PaddedByName(nn.Conv3d):
    def forward(self, x):
        return F.conv3d(x, self.weight, self.bias, padding="same")


class ScaledAfterwards(nn.Conv2d):
    """What happens after the convolution is no matter."""

    def forward(self, x):
        return 3 * F.relu_(F.conv2d(x, self.weight, self.bias, padding=2))


INSIDE = {
    "static": (lambda: StaticSame(3, 4, 3, stride=2), (3, 6, 5)),
    "static, depthwise": (lambda: StaticSame(4, 4, 3, groups=4, bias=False), (4, 5, 5)),
    "dynamic": (lambda: DynamicSame(3, 4, (3, 4), stride=(2, 1)), (3, 6, 5)),
    "dynamic, groups": (lambda: DynamicSame(4, 6, 3, groups=2), (4, 5, 5)),
    "causal": (lambda: Causal(2, 4, 3), (2, 6)),
    "by name": (lambda: PaddedByName(2, 3, 3), (2, 3, 4, 3)),
    "scaled": (lambda: ScaledAfterwards(2, 4, 3), (2, 4, 4)),
}


@pytest.mark.parametrize("name", INSIDE)
def test_rule_and_factors_of_the_plain_layer_hold(name):
    build, shape = INSIDE[name]
    layer = build()
    model, x, y = readout(layer, shape)
    squares = TurnedFisher(layer, None, None)
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    result = estimate(model, batches, labels="true", statistics={layer: [squares]})
    assert_matches(result.values, empirical_fisher(model, x, y))
    assert all(way.startswith("rule Conv") for way in result.ways.values())
    assert result.statistics[layer] == ""
    assert_equal(squares.totals["turned"], joined_gradients(model, layer, x, y).square().sum(0))


class Standardised(nn.Conv2d):
    """Convolves with a weight that is computed from its own."""

    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


class Twice(nn.Conv2d):
    def forward(self, x):
        once = F.conv2d(x, self.weight, self.bias, padding=1)
        return F.conv2d(torch.tanh(once), self.weight, self.bias, padding=1)


class AlsoBeside(nn.Conv2d):
    """One convolution, and another use of the same weight."""

    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias) * self.weight.square().mean()


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Standardised(3, 3, 3), "Standardised overrides forward and does not convolve with its weight itself"),
        (lambda: Twice(3, 3, 3), "its module is called 2 times"),
        (lambda: AlsoBeside(3, 3, 3), "rule Conv2d.weight disagrees with autograd"),
    ],
)
def test_other_uses_of_the_weight_fall_back(build, reason):
    model, x, y = readout(build(), (3, 5, 5))
    result = estimate(model, [(x, y)], labels="true")
    assert_matches(result.values, empirical_fisher(model, x, y))
    assert result.ways["layer.weight"] == f"torch.func ({reason})"
