"""Forward passes in bfloat16: close to float32, all state in float32, the Fisher untouched, the device asked first."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitfreeze.lab import precision
from bitfreeze.lab.methods import make_method, methods
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.nets.convolutions import ChannelsLast
from bitfreeze.lab.nets.dropout import Dropout, PoolReLU
from bitfreeze.lab.precision import computes_in_bf16, in_full, passes_in, require_able
from bitfreeze.lab.tasks import Batch
from bitfreeze.lab.training import Settings, Training, accuracy
from support import small_tasks
from support.small_tasks import STREAM, TASKS

CPU = torch.device("cpu")
HALF = passes_in("bf16", CPU)
# How far gradients may be off: roundings of 0.4 % add up with depth, and where pixels are equal in bfloat16, pooling
# may send the gradient to another one.
NETWORKS = {
    "mlp": ({"kind": "mlp", "hidden": [40]}, (1, 28, 28), 0.03),
    "alexnet": ({"kind": "alexnet", "channels": [8, 16, 16], "units": [32, 32]}, (3, 32, 32), 0.25),
    "resnet18": ({"kind": "resnet18", "width": 0.125}, (3, 32, 32), 0.12),
}


def loss_and_gradients(net, x, y, passes):
    """The loss of a batch and the gradients of all parameters in use, without dropout."""
    net.zero_grad()
    with passes():
        loss = F.cross_entropy(net.eval()(x, 0), y)
    loss.backward()
    return loss, {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", NETWORKS)
def test_loss_and_gradients_are_close_to_those_of_float32(kind):
    torch.manual_seed(0)
    options, shape, tolerance = NETWORKS[kind]
    net = build_network(options, shape, [5, 5])
    x, y = torch.randn(64, *shape), torch.randint(5, (64,))
    exact, gradients = loss_and_gradients(net, x, y, passes_in("float32", CPU))
    rough, rough_gradients = loss_and_gradients(net, x, y, HALF)
    assert rough.item() == pytest.approx(exact.item(), rel=0.01)
    assert rough.item() != exact.item()  # else nothing was reduced
    assert gradients.keys() == rough_gradients.keys()
    for name, gradient in gradients.items():
        assert rough_gradients[name].dtype == torch.float32
        off = (rough_gradients[name] - gradient).norm() / gradient.norm()
        assert off < tolerance, f"{name} is off by {off:.1%}"
        assert F.cosine_similarity(rough_gradients[name].flatten(), gradient.flatten(), dim=0) > 0.97


def test_alexnet_is_off_by_no_more_than_the_same_layers_of_torch():
    """The fused layers lose nothing of their own: under autocast they give the very gradients of torch's layers."""
    torch.manual_seed(0)
    options, shape, _ = NETWORKS["alexnet"]
    net = build_network(options, shape, [5])
    plain = _in_layers_of_torch(net)
    x, y = torch.randn(16, *shape), torch.randint(5, (16,))
    loss, gradients = loss_and_gradients(net, x, y, HALF)
    with HALF():
        features = plain(x)
    expected = F.cross_entropy(net.heads[0](features.float()), y)
    net.zero_grad()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for mine, theirs in zip(net.backbone.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(gradients[_name_of(net, mine)], theirs.grad, rtol=1e-3, atol=1e-6)


def _in_layers_of_torch(net):
    """Convolution, ReLU and pooling in the order of the paper, with copies of the weights."""
    layers = []
    for layer in net.backbone:
        if isinstance(layer, PoolReLU):
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        elif not isinstance(layer, ChannelsLast | Dropout):
            layers.append(copy.deepcopy(layer))
    return nn.Sequential(*layers)


def _name_of(net, wanted):
    return next(name for name, parameter in net.named_parameters() if parameter is wanted)


def test_scores_have_the_resolution_of_float32():
    """Two scores that differ by less than a step of bfloat16 still have an order."""
    net = small_tasks.mlp()
    x = STREAM.load(TASKS[0]).test.take(slice(None))[0]
    with torch.no_grad(), HALF():
        features, scores = net.features(x, 0), net(x, 0)
    assert features.dtype == torch.bfloat16
    assert scores.dtype == torch.float32
    assert torch.equal(scores, F.linear(features.float(), net.heads[0].weight, net.heads[0].bias))
    assert not torch.equal(scores, scores.bfloat16().float())


def test_in_full_leaves_float64_alone():
    layer, x = nn.Linear(3, 2).double(), torch.randn(4, 3).double()
    with HALF():
        assert torch.equal(in_full(layer, x), layer(x))


@pytest.mark.parametrize("name", methods)
def test_every_method_computes_its_losses_in_bf16_and_keeps_float32(name):
    """All state is in float32, and what ends a task (Fishers, merges) sees no autocast."""
    seen = {"train": set(), "end": set()}
    method = small_tasks.prepare(name)
    during = "train"

    def look(module, args, output):
        seen[during].add(torch.is_autocast_enabled("cpu"))

    handles = [m.register_forward_hook(look) for m in method.net.modules() if isinstance(m, nn.Flatten)]
    data = STREAM.load(TASKS[0])
    root = getattr(method, "nets", method.net)
    settings = Settings(lr=0.1, epochs=5, lr_min=0.01, precision="bf16")
    losses = [epoch.train_loss for epoch in Training(method, root, TASKS[0], data, settings, seed=0).epochs()]
    assert losses[-1] < losses[0]
    assert accuracy(method, root, TASKS[0], data.test, 500) > 80
    during = "end"
    method.end_task(TASKS[0], data)
    for handle in handles:
        handle.remove()
    assert seen["train"] == {True}
    assert seen["end"] <= {False}
    assert all(p.dtype == torch.float32 for p in root.parameters())
    kept = [t for t in _tensors(method.state_dict()) if t.is_floating_point()]
    # half precision is BLIP's own choice for the Fisher of what its directions leave out
    assert all(t.dtype == torch.float32 for t in kept) or name == "blip"


def _tensors(state):
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def test_the_fisher_of_blip_is_the_same_after_training_in_either_precision():
    """Consolidating the same weights freezes the same bits, whatever the precision of training."""
    states = []
    for name in ("float32", "bf16"):
        method = small_tasks.prepare("blip")
        method.passes = passes_in(name, CPU)
        torch.manual_seed(1)
        method.end_task(TASKS[0], STREAM.load(TASKS[0]))
        states.append(_tensors(method.state_dict()))
    assert states[0]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_a_step_in_bf16_steps_along_the_gradient_of_bf16():
    """The optimizer adds exactly lr times the gradient that autograd finds by hand under autocast."""
    method = make_method("ft", {})
    torch.manual_seed(0)
    method.build(small_tasks.mlp(), TASKS)
    method.passes = HALF
    x, y = STREAM.load(TASKS[0]).train.take(slice(0, 32))
    before = {name: p.detach().clone() for name, p in method.net.named_parameters()}
    with HALF():
        loss = F.cross_entropy(method.net(x, 0), y)
    by_hand = torch.autograd.grad(loss, list(method.trained(TASKS[0])))
    method.train_batch(Batch(x, y, TASKS[0]), 0.0, method.optimizers(TASKS[0], 0.1))
    moved = {id(p): before[name] - p.detach() for name, p in method.net.named_parameters()}
    for parameter, gradient in zip(method.trained(TASKS[0]), by_hand, strict=True):
        assert torch.allclose(moved[id(parameter)], 0.1 * gradient, rtol=1e-4, atol=1e-7)


def test_validation_and_tests_have_the_precision_of_training(monkeypatch):
    seen = []
    features = MultiHead.features

    def look(self, x, task):
        seen.append(torch.is_autocast_enabled("cpu"))
        return features(self, x, task)

    monkeypatch.setattr(MultiHead, "features", look)
    for name, expected in (("bf16", True), ("float32", False)):
        method = small_tasks.prepare("ft")
        data = STREAM.load(TASKS[0])
        training = Training(method, method.net, TASKS[0], data, Settings(precision=name), seed=0)
        seen.clear()
        training._validate()
        accuracy(method, method.net, TASKS[0], data.test, 500)
        assert seen == [expected] * 2


# what the processor can do


@pytest.mark.parametrize(
    ("flags", "able"),
    [
        ({"fpu", "avx512f", "avx512_bf16"}, True),
        ({"fpu", "amx_bf16"}, True),
        ({"fp", "asimd", "bf16"}, True),
        ({"fpu", "avx2", "avx512f"}, False),
        (set(), True),
    ],
)
def test_arithmetic_in_bf16_is_told_from_the_flags_of_a_processor(flags, able):
    assert computes_in_bf16(flags) == able


def test_flags_are_read_as_linux_writes_them(tmp_path):
    x86, arm = tmp_path / "x86", tmp_path / "arm"
    x86.write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16\nbugs\t\t: bf16\n")
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert precision._cpu_flags(x86) == {"fpu", "avx512_bf16"}
    assert precision._cpu_flags(arm) == {"fp", "asimd", "bf16"}
    assert precision._cpu_flags(tmp_path / "none") == set()


def test_a_processor_without_bf16_is_slow_and_not_refused(monkeypatch):
    monkeypatch.setattr(precision, "_cpu_flags", lambda: {"avx2"})
    with pytest.warns(UserWarning, match="bf16 is slower than float32 on this processor, which has no arithmetic"):
        require_able("bf16", CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_able("float32", CPU)


def test_a_device_whose_autocast_does_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.float16)
    with pytest.raises(ValueError, match=r"training\.precision must be float32 on cpu, got bf16; torch .* has no"):
        require_able("bf16", CPU)


def test_a_device_without_autocast_is_refused():
    with pytest.raises(ValueError, match=r"training\.precision must be float32 on meta, got bf16"):
        require_able("bf16", torch.device("meta"))


def test_an_unknown_precision_is_refused_by_name():
    with pytest.raises(ValueError, match=r"training\.precision must be float32 or bf16, got fp8"):
        Settings(precision="fp8")
