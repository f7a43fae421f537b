"""EfficientNet-Lite0 with made weights: padding, names in the published file, statistics."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab.data import DataCorrupt, DataMissing, load_efficientnet_lite0
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.nets.efficientnet import Convolution, EfficientNetLite0
from support.pretrained import published_state, take_as_they_are, write_efficientnet

pytestmark = pytest.mark.filterwarnings("ignore:efficientnet_lite0")


@pytest.fixture
def build(tmp_path, monkeypatch):
    take_as_they_are(tmp_path, monkeypatch)
    write_efficientnet(tmp_path)
    return lambda **options: build_network({"kind": "efficientnet_lite0", "size": 32, **options}, (3, 32, 32), [4, 3])


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (1, 1)])
def test_convolutions_pad_as_tensorflow_does(kernel, stride):
    """TensorFlow's "same": ceil(n / stride) outputs, and the odd row and column of zeros behind."""
    torch.manual_seed(0)
    layer, x = Convolution(2, 3, kernel, stride).eval(), torch.randn(1, 2, 8, 8)
    out = -(-8 // stride)
    total = max(0, (out - 1) * stride + kernel - 8)
    padded = F.pad(x, (total // 2, total - total // 2) * 2)
    expected = F.conv2d(padded, layer.conv.weight, stride=stride) / (1 + 1e-3) ** 0.5
    torch.testing.assert_close(layer(x), expected)
    assert expected.shape[-1] == out


def test_it_has_the_published_size_and_takes_the_published_weights(build):
    net = build()
    assert sum(p.numel() for p in net.backbone.parameters()) == 3_371_008
    state, own = published_state(), net.backbone.state_dict()
    assert torch.equal(own["blocks.3.depthwise.conv.weight"], state["_blocks.3._depthwise_conv.weight"])
    assert torch.equal(own["blocks.0.project.norm.bias"], state["_blocks.0._bn2.bias"])
    assert torch.equal(own["last.conv.weight"], state["_conv_head.weight"])
    assert net(torch.zeros(2, 3, 32, 32), 0).shape == (2, 4)


@pytest.mark.parametrize(
    ("statistics", "moving"), [("first", [True, False]), ("start", [False] * 2), ("free", [True] * 2)]
)
def test_statistics_are_held_as_asked(build, statistics, moving):
    net = build(statistics=statistics)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for task, moves in enumerate(moving):
        before = [norm.running_mean.clone() for norm in norms]
        net.train()(torch.randn(4, 3, 32, 32), task)
        changed = [not torch.equal(norm.running_mean, old) for norm, old in zip(norms, before, strict=True)]
        assert changed == [moves] * len(norms)


def test_bad_input_is_told(build, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"three colours, got shape \(1, 28, 28\)"):
        build_network({"kind": "efficientnet_lite0"}, (1, 28, 28), [2])
    with pytest.raises(ValueError, match=r"network.size must be at least 32, got 16"):
        build(size=16)
    with pytest.raises(DataMissing, match=r"run `bitfreeze data get efficientnet_lite0`"):
        load_efficientnet_lite0(tmp_path / "nowhere")
    (tmp_path / "efficientnet_lite0" / "efficientnet-lite0.pth").write_bytes(b"no weights")
    with pytest.raises(DataCorrupt, match=r"holds no weights .* run `bitfreeze data get efficientnet_lite0`"):
        load_efficientnet_lite0()


def test_pictures_are_scaled_in_the_network():
    torch.manual_seed(0)
    net, x = EfficientNetLite0(64, "start").eval(), torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(net(x), net(F.interpolate(x, (64, 64), mode="bilinear")))
