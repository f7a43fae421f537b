"""The AlexNet of the picture benchmarks: its sizes, its order of layers, and every method on it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab.methods import make_method, methods
from bitfreeze.lab.nets import build_network
from bitfreeze.lab.nets.adversarial import shared_private
from bitfreeze.lab.runs.config import preset
from bitfreeze.lab.tasks import Split, Task, TaskData
from bitfreeze.lab.training import Settings, Training

CIFAR, IMAGENET = (3, 32, 32), (3, 84, 84)
CIFAR_CLASSES = [2, 20, 2, 20, 2, 20, 20, 2, 2, 20]
NARROW = {"kind": "alexnet", "channels": [6, 7, 8], "units": [16, 12], "dropout": [0.1, 0.1]}
QUICK = {"samples": 2, "prediction_samples": 2, "shared_width": 8, "private_channels": 2, "latent": 4, "s_step": 1}


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("settings", "shape", "classes", "parameters"),
    [
        (preset("alt_cifar")["network"], CIFAR, CIFAR_CLASSES, 9_444_334),
        ({"kind": "alexnet"}, CIFAR, CIFAR_CLASSES, 6_729_262),
        (preset("five_datasets")["network"], CIFAR, [10] * 5, 4_244_694),
        (preset("mini_imagenet20")["network"], IMAGENET, [5] * 20, 27_467_556),
        (preset("cifar100_10")["network"], CIFAR, [10] * 10, 6_713_216),  # GPM's, without biases, with norms
    ],
)
def test_has_as_many_parameters_as_the_released_networks(settings, shape, classes, parameters):
    assert count(build_network(settings, shape, classes)) == parameters


@pytest.mark.parametrize(
    ("stream", "shape", "classes", "parameters"),
    [("five_datasets", CIFAR, [10] * 5, 4.117e6), ("mini_imagenet20", IMAGENET, [5] * 20, 28.10e6)],
)
def test_the_networks_of_acl_have_the_sizes_of_its_paper(stream, shape, classes, parameters):
    own = preset(stream)["methods"]["acl"]
    widths = ("latent", "head_units", "head_inner", "shared_width", "private_channels")
    net = shared_private(shape, classes, **{name: own[name] for name in widths})
    assert count(net) == pytest.approx(parameters, rel=2e-4)


def by_hand(net: nn.Module, x: torch.Tensor, task: int) -> torch.Tensor:
    """Convolution, norm by the batch if there is one, ReLU, pooling, as the papers have them; without dropout."""
    layers = dict(net.backbone.named_children())

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        if name not in layers:
            return x
        over = [0, 2, 3][: x.ndim - 1]
        variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        scale, shift = (p.view(mean.shape) for p in (layers[name].weight, layers[name].bias))
        return (x - mean) / (variance + 1e-5).sqrt() * scale + shift

    for number in (1, 2, 3):
        layer = layers[f"conv{number}"]
        x = F.max_pool2d(F.relu(normed(F.conv2d(x, layer.weight, layer.bias), f"conv_norm{number}")), 2)
    x = x.flatten(1)
    for number in (1, 2):
        layer = layers[f"fc{number}"]
        x = F.relu(normed(F.linear(x, layer.weight, layer.bias), f"fc_norm{number}"))
    return net.heads[task](x)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("form", [{}, {"norm": True, "bias": False}], ids=["HAT", "GPM"])
@pytest.mark.parametrize("shape", [CIFAR, (1, 20, 27)])
def test_computes_what_the_layers_in_the_papers_order_do(shape, form, mode):
    torch.manual_seed(0)
    net = build_network({**NARROW, "dropout": [0.0, 0.0], **form}, shape, [3, 2]).train(mode == "train").double()
    x, y = torch.randn(5, *shape, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    gradients = []
    for forward in (net, lambda x, task: by_hand(net, x, task)):
        net.zero_grad()
        F.cross_entropy(forward(x, 1), y).backward()
        gradients.append([p.grad.clone() for name, p in net.named_parameters() if "heads.0" not in name])
    torch.testing.assert_close(net(x, 1), by_hand(net, x, 1), rtol=1e-5, atol=1e-6)
    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)


def test_weights_start_as_the_released_code_has_them():
    torch.manual_seed(0)
    for init in ("normal", "uniform"):
        net = build_network({"kind": "alexnet", "init": init}, CIFAR, [2])
        for name in ("conv2", "conv3", "fc1", "fc2"):
            layer = net.backbone.get_submodule(name)
            fan_in = layer.weight[0].numel()
            expected = 1.0 if init == "normal" else 3**-0.5  # torch: uniform within 1 / sqrt(fan_in)
            assert layer.weight.std().item() * fan_in**0.5 == pytest.approx(expected, rel=0.02)
            assert (layer.weight.abs().max() * fan_in**0.5 > 1.01) == (init == "normal")
            assert not layer.bias.any()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"channels": [3, 4]}, r"network.channels must be 3 widths of at least 1, got \[3, 4\]"),
        ({"units": [3, 0]}, r"network.units must be 2 widths of at least 1, got \[3, 0\]"),
        ({"dropout": [0.2, 1.0]}, r"network.dropout must be 2 shares of at least 0 and less than 1, got \[0.2, 1.0\]"),
        ({"init": "xavier"}, r"network.init must be normal or uniform, got 'xavier'"),
    ],
)
def test_options_out_of_range_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_network({"kind": "alexnet", **options}, CIFAR, [2])


def test_pictures_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match=r"must be pictures of at least 20x20 pixels, got shape \(1, 8, 8\)"):
        build_network({"kind": "alexnet"}, (1, 8, 8), [2])


def pictures(task: Task) -> TaskData:
    generator = torch.Generator().manual_seed(task.index)
    x = torch.randint(256, (16, *CIFAR), generator=generator, dtype=torch.uint8)
    split = Split(x, torch.arange(16) % 2, (0.5, 0.4, 0.3), (0.3, 0.3, 0.3))
    return TaskData(split, split, split)


@pytest.mark.filterwarnings("ignore:no weight reached the edge")  # a few steps move weights by little
@pytest.mark.parametrize("name", methods)
def test_every_method_trains_it_on_two_tasks(name):
    torch.manual_seed(0)
    tasks = tuple(Task(k, f"task {k}", 2) for k in range(2))
    known = methods[name].__dataclass_fields__
    method = make_method(name, {option: value for option, value in QUICK.items() if option in known})
    net = method.build(build_network(NARROW, CIFAR, [2, 2]), tasks)
    for task in tasks:
        data, before = pictures(task), {name: p.clone() for name, p in net.named_parameters()}
        epochs = list(Training(method, net, task, data, Settings(lr=0.05, batch=8, epochs=2), seed=0).epochs())
        method.end_task(task, data)
        assert len(epochs) == 2
        assert method.logits(data.test.take(slice(None))[0], task).shape == (16, 2)
        moved = {key for key, p in net.named_parameters() if not torch.equal(p, before[key])}
        assert any(f"heads.{task.index}." in key for key in moved)
        assert any("backbone." in key for key in moved) == (name != "ft_fix" or task.index == 0)


@pytest.mark.parametrize("norm", [True, False])
def test_norms_by_the_batch_are_validated_in_another_order_each_time(norm: bool) -> None:
    """Which samples share a batch changes their loss: in one order for all epochs, one of them would be lucky."""
    torch.manual_seed(0)
    task = Task(0, "task 0", 2)
    method = make_method("ft", {})
    net = method.build(build_network({**NARROW, "norm": norm}, CIFAR, [2]), (task,))
    settings = Settings(lr=0.05, batch=8, evaluation_batch=4)
    training = Training(method, net, task, pictures(task), settings, seed=0)
    losses = [training._validate() for _ in range(3)]
    assert (len(set(losses)) == 3) == norm
    again = Training(method, net, task, pictures(task), settings, seed=0)
    assert [again._validate() for _ in range(3)] == losses
