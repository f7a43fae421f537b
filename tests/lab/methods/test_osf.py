"""OSF against its equations by brute force, and against the layer of the library that its authors gave it to."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW

from bitfreeze.lab.methods.osf import Decomposed
from bitfreeze.lab.training import Settings, Training
from support.small_tasks import STREAM, TASKS, convolutional, learn, mlp, prepare, train

SHAPES = [(9, 6), (6, 9), (8, 8)]  # outputs and inputs
PARTS = ("u_low", "s_low", "v_low")


def linear(outputs, inputs, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, dtype=dtype)


def state(layer):
    return {name: value.detach().clone() for name, value in layer.state_dict().items()}


def teach(layer, optimizer, steps):
    """Take steps towards a layer with other weights, on inputs that a seed draws, and return the change."""
    draws = torch.Generator().manual_seed(1)
    start = layer.weight.detach().clone()
    target = start + 0.3 * start.std() * torch.randn(start.shape, generator=draws).to(start)
    for _ in range(steps):
        x = torch.randn(64, start.shape[1], generator=draws).to(start)
        optimizer.zero_grad()
        (layer(x) - F.linear(x, target, layer.bias)).square().mean().backward()
        layer.project()
        optimizer.step()
    return (layer.weight - start).detach()


def leaks(layer, change):
    """Parts of a change of the weight that lie along U_high and along V_high, as shares of its norm."""
    parts = layer.u_high.T @ change, change @ layer.v_high.T
    return [(part.norm() / change.norm()).item() for part in parts]


# the parts


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("share", "kept"), [(0.0, 0), (0.2, 1), (0.5, None), (1.0, None)])
def test_the_parts_are_those_of_the_decomposition_and_add_up_to_the_weight(shape, share, kept):
    plain = linear(*shape)
    layer, directions = Decomposed(plain, share), min(shape)
    kept = int(share * directions) if kept is None else kept
    assert (layer.u_high.shape, layer.v_high.shape) == ((shape[0], kept), (kept, shape[1]))
    torch.testing.assert_close(layer.weight, plain.weight, rtol=0, atol=1e-6)
    u, s, v = torch.linalg.svd(plain.weight.detach().double(), full_matrices=False)
    torch.testing.assert_close(layer.high.double(), u[:, :kept] * s[:kept] @ v[:kept], rtol=0, atol=1e-6)
    torch.testing.assert_close(layer.low().double(), u[:, kept:] * s[kept:] @ v[kept:], rtol=0, atol=1e-6)
    for whole in (torch.cat([layer.u_high, layer.u_low], 1), torch.cat([layer.v_high, layer.v_low]).T):
        torch.testing.assert_close(whole.T @ whole, torch.eye(directions), rtol=0, atol=1e-5)
    x = torch.randn(4, shape[1])
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_weight_by_the_chain_rule_without_what_is_kept(shape):
    plain = linear(*shape, torch.float64)
    layer, x = Decomposed(plain, 0.5), torch.randn(5, shape[1], dtype=torch.float64)
    plain(x).square().sum().backward()
    layer(x).square().sum().backward()
    layer.project()
    whole = plain.weight.grad
    by_row = torch.eye(shape[0]) - layer.u_high @ layer.u_high.T
    by_column = torch.eye(shape[1]) - layer.v_high.T @ layer.v_high
    torch.testing.assert_close(layer.u_low.grad, by_row @ whole @ layer.v_low.T * layer.s_low)
    torch.testing.assert_close(layer.s_low.grad, torch.diagonal(layer.u_low.T @ whole @ layer.v_low.T))
    torch.testing.assert_close(layer.v_low.grad, layer.s_low[:, None] * layer.u_low.T @ whole @ by_column)


# what stays


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.5}])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_sgd_changes_nothing_along_the_kept_directions_in_any_task(share, options):
    method = prepare("osf", make_net=convolutional, share=share, **options)
    layer = method.net.backbone[5]
    for task in TASKS[:3]:
        start, before = layer.weight.detach().clone(), state(layer)
        data = train(method, task)
        change = layer.weight.detach() - start
        assert change.norm() > 0.005
        for part in (layer.u_high.T @ change, change @ layer.v_high.T):
            torch.testing.assert_close(part, torch.zeros_like(part), rtol=0, atol=1e-5)
        inner = layer.u_high.T @ layer.u_low, layer.v_low @ layer.v_high.T
        for part in inner:
            torch.testing.assert_close(part, torch.zeros_like(part), rtol=0, atol=1e-5)
        assert all(torch.equal(state(layer)[name], before[name]) for name in ("high", "u_high", "v_high", "bias"))
        torch.testing.assert_close(layer.weight, layer.high + layer.u_low @ torch.diag(layer.s_low) @ layer.v_low)
        weight = layer.weight.detach().clone()
        method.end_task(task, data)
        torch.testing.assert_close(layer.weight, weight, rtol=0, atol=1e-5)


def test_the_next_task_keeps_what_is_strongest_by_then():
    method = prepare("osf", share=0.5)
    layer = method.net.backbone[1]
    first = layer.v_high.clone()
    learn(method, TASKS[0])
    s, v = torch.linalg.svd(layer.weight.detach().double())[1:]
    torch.testing.assert_close(layer.s_low.detach(), s[6:].float())
    spaces = [part.double().T @ part.double() for part in (layer.v_high, v[:6], first)]
    torch.testing.assert_close(spaces[0], spaces[1], rtol=0, atol=1e-5)
    assert (spaces[0] - spaces[2]).norm() > 1e-3


def test_share_1_fixes_the_backbone_to_the_bit():
    for adamw in (False, True):
        method = prepare("osf", share=1.0)
        weight, head = mlp_weight(method), method.net.heads[0].weight.clone()
        settings = Settings(lr=0.01, batch=32, epochs=2, optimizer="adamw" if adamw else "sgd")
        data = STREAM.load(TASKS[0])
        for _ in Training(method, method.net, TASKS[0], data, settings, seed=0).epochs():
            pass
        method.end_task(TASKS[0], data)
        assert torch.equal(mlp_weight(method), weight)
        assert not torch.equal(method.net.heads[0].weight, head)
        assert sum(value.numel() for value in method.net.backbone.parameters()) == 0


def mlp_weight(method):
    return method.net.backbone[1].weight.detach().clone()


def test_share_0_trains_all_directions_without_a_projection():
    layer = Decomposed(linear(8, 8), 0.0)
    assert layer.high.abs().max() < 1e-6
    layer(torch.randn(5, 8)).square().sum().backward()
    before = {name: getattr(layer, name).grad.clone() for name in PARTS}
    layer.project()
    assert all(torch.equal(getattr(layer, name).grad, before[name]) for name in PARTS)
    layer = Decomposed(linear(8, 8), 0.0)
    change = teach(layer, SGD(layer.parameters(), lr=0.1), 20)
    assert torch.linalg.matrix_rank(change, rtol=1e-3) == 8


@pytest.mark.parametrize("shape", [(288, 288), (768, 288), (288, 768)])  # those of stories15M
def test_adamw_leaves_the_kept_directions_as_the_docs_say(shape):
    """Its steps are scaled entry by entry, which turns a projected gradient. The docs quote these bounds."""
    layer = Decomposed(linear(*shape), 0.5)
    change = teach(layer, AdamW(layer.parameters(), lr=2e-4), 60)
    assert all(0.04 < leak < 0.1 for leak in leaks(layer, change))
    both = (layer.u_high.T @ change @ layer.v_high.T).norm() / change.norm()
    assert both < 1e-3
    layer = Decomposed(linear(*shape), 0.5)
    assert max(leaks(layer, teach(layer, SGD(layer.parameters(), lr=10.0), 60))) < 1e-4


# the method


def test_the_task_s_head_and_low_parts_are_trained_alone():
    method = prepare("osf", make_net=convolutional)
    trained = {id(value) for value in method.trained(TASKS[1])}
    names = {name for name, value in method.net.named_parameters() if id(value) in trained}
    assert names == {"heads.1.weight", "heads.1.bias", *(f"backbone.5.{part}" for part in PARTS)}
    before = copy.deepcopy(method.net.backbone[0])
    learn(method, TASKS[0])
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), method.net.backbone[0].parameters(), strict=True))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_extra_memory_is_what_the_network_holds_beyond_the_plain_one(share):
    method = prepare("osf", share=share)
    held, plain = (sum(value.nbytes for value in net.state_dict().values()) for net in (method.net, mlp()))
    assert method.extra_bytes() == held - plain


def test_a_backbone_without_linear_layers_is_refused():
    def only_convolutions():
        net = convolutional()
        net.backbone = net.backbone[:5]
        return net

    with pytest.raises(ValueError, match="osf needs a backbone with linear layers"):
        prepare("osf", make_net=only_convolutions)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_that_makes_no_sense_is_refused(share):
    with pytest.raises(ValueError, match=rf"method.share must be from 0 to 1, got {share}"):
        prepare("osf", share=share)


# against PEFT


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("optimizer", [SGD, AdamW])
def test_steps_are_those_of_peft(shape, share, optimizer):
    """PEFT decomposes in float32 and may give a pair of directions another sign, which neither optimizer looks at."""
    peft = pytest.importorskip("peft")
    plain = linear(*shape)
    wrapped = nn.ModuleDict({"layer": copy.deepcopy(plain)})
    theirs = peft.get_peft_model(wrapped, peft.OSFConfig(target_modules=["layer"], effective_rank=share))
    layer, other = Decomposed(plain, share), theirs.base_model.model["layer"]
    parts = other.osf_svd_params["default"]
    assert len(layer.v_high) == other.effective_rank["default"]
    mine = optimizer(layer.parameters(), lr=0.01)
    other_optimizer = optimizer([value for value in other.parameters() if value.requires_grad], lr=0.01)
    signs = (layer.u_low * parts["U_low"]).sum(0).sign().detach()
    draws = torch.Generator().manual_seed(2)
    target, moved = torch.randn(shape, generator=draws), 0.0
    for _ in range(20):
        x = torch.randn(16, shape[1], generator=draws)
        for each, its_optimizer in ((layer, mine), (other, other_optimizer)):
            its_optimizer.zero_grad()
            (each(x) - x @ target.T).square().mean().backward()
        layer.project()
        close = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(layer.u_low.grad * signs, parts["U_low"].grad, **close)
        torch.testing.assert_close(layer.s_low.grad, parts["S_low"].grad, **close)
        torch.testing.assert_close(layer.v_low.grad * signs[:, None], parts["V_low"].grad, **close)
        for its_optimizer in (mine, other_optimizer):
            its_optimizer.step()
        weight = other.base_layer.weight + other.get_delta_weight("default")
        torch.testing.assert_close(layer.weight, weight, rtol=0, atol=1e-5)
        moved = (layer.weight - plain.weight).norm().item()
    assert (moved > 0.01) == (share < 1)
