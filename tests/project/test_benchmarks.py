"""The benchmarks compare like with like: both sides of each do the same work."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.optim import SGD

from bitfreeze import BLIP, Rules, diagonal_fisher, protect
from bitfreeze.blip.protection import table_of
from bitfreeze.lab.methods import methods
from bitfreeze.lab.nets import MultiHead, build_network
from bitfreeze.lab.results.stored import find_runs
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.streams import make_stream
from support.scripts import script

acl_codes = script("research/acl_codes")
convnets = script("benchmarks/convnets")
held_layers = script("research/held_layers")
interval_use = script("research/interval_use")
layers_together = script("research/layers_together")
logit_shift = script("research/logit_shift")
loop = script("benchmarks/loop")
mini_imagenet = script("benchmarks/mini_imagenet")
protocol = script("benchmarks/protocol")
released_code = script("benchmarks/released")
rounding = script("research/rounding")

BATCH, PRIOR = 20, 1e-11  # of the Fisher, and F0 on the scale that goes with it


def test_the_loop_and_the_one_by_hand_take_the_same_steps() -> None:
    stream = make_stream("digits5")
    data = loop.first_rows(stream.load(stream.tasks[0]), 200)
    ours, bare = loop.our_epochs(stream, data, "ft"), loop.bare_epochs(loop.new_network(stream), data)
    for _ in range(2):
        (net, loss), (by_hand, loss_by_hand) = next(ours), next(bare)
        assert loss == pytest.approx(loss_by_hand, rel=1e-5)
        for mine, other in zip(net.parameters(), by_hand.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_both_sides_of_the_convolutional_step_are_the_same_network() -> None:
    ours = convnets.our_alexnet(channels=[4, 6, 8], units=[16, 12])
    plain = convnets.plain_alexnet(ours)
    assert [type(layer).__name__ for layer in plain][:5] == ["Conv2d", "ReLU", "Dropout", "MaxPool2d", "Conv2d"]
    assert [layer.p for layer in plain if isinstance(layer, torch.nn.Dropout)] == [0.2, 0.2, 0.5, 0.5, 0.5]
    assert_same_loss_and_gradients(ours.eval(), plain.eval(), torch.randn(4, 3, 32, 32))


def test_both_sides_of_the_residual_step_are_the_same_network() -> None:
    ours = convnets.our_resnet18(size=32, width=0.125)
    plain = convnets.plain_resnet18(ours)
    kinds = {type(layer).__name__ for layer in plain.modules()}
    assert "BatchNorm2d" in kinds
    assert not kinds & {"TaskNorm", "ChannelsLast", "EverySecond"}
    assert_same_loss_and_gradients(ours.double(), plain.double(), torch.randn(4, 3, 32, 32, dtype=torch.float64))


def assert_same_loss_and_gradients(ours: torch.nn.Module, plain: torch.nn.Module, x: Tensor) -> None:
    found = []
    for net in (ours, plain):
        loss = F.cross_entropy(net(x), torch.arange(4))
        found.append([loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def small_network() -> MultiHead:
    torch.manual_seed(0)
    return build_network({"kind": "mlp", "hidden": [24, 16]}, (1, 8, 8), [2] * 5)


def train(net: MultiHead, blip: BLIP, x: Tensor, y: Tensor, task: int, order: Tensor) -> None:
    optimizer = SGD(net.parameters(), lr=0.3)
    for rows in order.split(32):
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows], task), y[rows]).backward()
        optimizer.step()
        blip.clamp_()


def test_the_emulated_protocol_computes_what_the_released_rules_do() -> None:
    stream = make_stream("digits5")
    net, copy = small_network(), small_network()
    blip = BLIP(net, watch=net.backbone, prior=PRIOR * BATCH**2, rules=Rules.released())
    released = released_code.Released(copy, prior=PRIOR, batch=32)
    tensors = {name: p for name, p in net.named_parameters() if name.startswith("backbone")}
    frozen = dict(zip(tensors, (tensor for layer in released.frozen for tensor in layer), strict=True))
    for task in stream.tasks[:3]:
        x, y = stream.load(task).train.take(slice(0, 240))
        optimizer = SGD(copy.parameters(), lr=0.3)
        clipped = 0
        for _ in range(5):
            order = torch.randperm(len(y))
            train(net, blip, x, y, task.index, order)
            released.train_epoch(x, y, task.index, optimizer, order)
        for name, (low, high) in blip.intervals().items():
            torch.testing.assert_close(frozen[name].parameter, tensors[name], rtol=0, atol=2e-6)
            clipped += int(((tensors[name] == low) | (tensors[name] == high)).sum())
        assert clipped or task.index == 0

        def forward(x: Tensor, task: int = task.index) -> Tensor:
            return net(x, task)

        clean = diagonal_fisher(net, [(x, y)], forward, labels="true", watch=net.backbone)
        divided = released.fisher(x, task.index, BATCH, labels=y)
        blip.consolidate([(x, y)], forward, labels="true")
        for (name, tensor), fisher in zip(frozen.items(), (f for layer in divided for f in layer), strict=True):
            torch.testing.assert_close(fisher * BATCH**2, clean[name], rtol=1e-3, atol=1e-12)
            tensor.freeze_(fisher, task.index + 1)
        follow(blip, frozen, net, copy)
    assert 0.05 < blip.capacity() < 0.9


def follow(blip: BLIP, frozen: dict, net: MultiHead, copy: MultiHead) -> None:
    """The same bits and centres, but for a few gains or weights that rounding took to the other side of a tie; from
    there both go on alike."""
    saved, unlike = blip.state_dict()["tensors"], 0
    for name, tensor in frozen.items():
        state = saved[name]
        centre = state["centre"].double() * 2.0**-20 * state["bound"]
        same = (state["bits"] == tensor.bits) & ((centre - tensor.centre).abs() < 1e-6)
        unlike += int((~same).sum())
        tensor.bits, tensor.centre, tensor.fisher = state["bits"].long(), centre.float(), state["fisher"] / BATCH**2
    assert unlike <= 4, f"{unlike} entries differ"
    copy.load_state_dict(net.state_dict())


def test_the_emulated_protocol_evaluates_loss_and_accuracy() -> None:
    stream, net = make_stream("digits5"), small_network()
    x, y = stream.load(stream.tasks[1]).train.take(slice(0, 100))
    loss, right = released_code.Released(net, PRIOR, batch=32).evaluate(x, y, 1)
    assert loss == pytest.approx(F.cross_entropy(net(x, 1), y).item(), rel=1e-5)
    assert round(right * len(y)) == int((net(x, 1).argmax(1) == y).sum())


def test_a_whole_run_is_the_sum_of_its_parts() -> None:
    shares = protocol.Shares(
        ours=dict.fromkeys(protocol.PARTS, 1.0), released=dict(zip(protocol.PARTS, (4.0, 2.0, 30.0, 1.0), strict=True))
    )
    assert shares.ratio("a task's end") == 30
    assert shares.whole(epochs=10, tasks=2) == (2 * (10 * 6 + 30) + 3) / (2 * (10 * 2 + 1) + 3)


def test_rounding_together_is_what_the_rule_for_it_would_freeze(tmp_path: Path) -> None:
    config = make_config("digits5", "blip", "strict", changes=["method.rounding=total", "training.epochs=2"])
    run(config, tmp_path)
    (stored,) = find_runs(tmp_path, [])
    assert stored.bits is not None
    for frozen, together in rounding.compare(stored.bits):
        assert together == pytest.approx(frozen, abs=0.02)  # gains are kept in half precision


@pytest.mark.parametrize("rules", ["strict", "released"])
def test_the_use_of_intervals_is_what_the_weights_of_each_task_say(rules: str, tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="needs the extra 'atari'")
    changes = ["training.steps=2048", "training.evaluations=0", "training.final_games=1", "training.game_steps=5"]
    run(make_config("control", "blip", changes=[*changes, f"method.rules={rules}"]), tmp_path)
    (stored,) = find_runs(tmp_path, [])
    history = stored.bits
    assert history is not None
    found = list(interval_use.uses(history))
    assert len(found) == 3
    for task, layers in enumerate(found, 1):
        weights = stored.folder.read_tensors("weights", task)
        for name, frozen, share in layers:
            bits, centre = (history._read(f"{name}/{what}", task - 1) for what in ("bits", "centre"))
            steps = weights[name].double().numpy() / history.bound(name) * 2**20 - centre
            assert frozen == pytest.approx(bits.mean())
            assert share == pytest.approx((abs(steps) > 2.0 ** (19 - bits)).mean(), abs=0.01)
    assert any(0 < share < 1 for layers in found for _, _, share in layers)


def test_layers_are_held_within_the_intervals_that_they_had_before_the_game(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="needs the extra 'atari'")
    changes = ["training.steps=2048", "training.evaluations=0", "training.final_games=2", "training.game_steps=5"]
    run(make_config("control", "blip", changes=[*changes, "method.budget=0.4"]), tmp_path)
    (stored,) = find_runs(tmp_path, [])
    before = stored.folder.read_tensors("weights", 1)
    for held, count in (("all", 4), ("linear", 4), ("convolutions", 0), ("none", 0)):
        method, _, _ = held_layers.prepared(stored, 3, held)
        assert all(torch.equal(value, before[name]) for name, value in method.net.state_dict().items())
        assert len(method.intervals) == count
        for parameter, low, high in method.intervals:
            inside = parameter.detach().clone()
            assert bool(((low <= inside) & (inside <= high)).all())
            with torch.no_grad():
                parameter.add_(10.0)
            method.after_step(method.net)
            assert torch.equal(parameter.detach(), high)
    played, training = held_layers.learn(stored, 3, 2048, "all")
    assert len(played) == 2
    assert training


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, in forward-mode derivatives
def test_the_divergence_of_a_policy_and_its_quadratic_part() -> None:
    torch.manual_seed(0)
    net, states = build_network({"kind": "policy_mlp"}, (4,), [3, 3]).double(), torch.randn(50, 4).double()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    after = {name: value + 1e-4 * torch.randn_like(value) for name, value in before.items()}
    p, q = (functional_call(net, weights, (states, 0)).softmax(-1) for weights in (before, after))
    kl, quadratic = layers_together.divergence(net, before, after, states)
    assert kl == pytest.approx((p * (p.log() - q.log())).sum(-1).mean().item())
    assert quadratic == pytest.approx(kl, rel=1e-2)  # the change is small
    some = layers_together.changed(before, after, ["backbone.3"])
    assert [name for name in some if not torch.equal(some[name], before[name])] == [
        "backbone.3.weight", "backbone.3.bias",
    ]  # fmt: skip


def test_a_constant_shift_of_logits_is_taken_back_and_nothing_else_is() -> None:
    torch.manual_seed(0)
    before, labels = torch.randn(500, 4), torch.randint(4, (500,))
    right = 100 * (before.argmax(1) == labels).float().mean().item()
    then, now, back, share = logit_shift.shift(before, before + torch.tensor([3.0, 0.0, -1.0, 0.5]), labels)
    assert (then, back, share) == (pytest.approx(right), pytest.approx(right), pytest.approx(1))
    assert now != pytest.approx(right)
    noise = torch.randn(500, 4)
    assert logit_shift.shift(before, before + noise - noise.mean(0), labels)[3] == pytest.approx(0, abs=1e-9)
    assert logit_shift.shift(before, before, labels)[3] == 0


def test_shifts_are_told_of_every_earlier_task() -> None:
    config = make_config("digits5", "ft", changes=["training.epochs=1"])
    told = list(logit_shift.shifts(config))
    assert [len(earlier) for earlier in told] == [0, 1, 2, 3, 4]
    assert all(0 <= share <= 1 + 1e-6 for earlier in told for *_, share in earlier)


def test_ends_of_tasks_are_timed_one_by_one_and_done_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("digits5", "blip", changes=["training.epochs=1"])
    plain = run(config, tmp_path / "plain")
    monkeypatch.setattr(methods["blip"], "end_task", methods["blip"].end_task)  # put back what the benchmark wraps
    ends = mini_imagenet.time_ends(methods["blip"])
    timed = run(config, tmp_path / "timed")
    assert timed.acc == plain.acc
    assert len(ends) == 5
    assert min(ends) > 0


def test_codes_that_are_taken_away_are_missed_where_they_are_used(tmp_path: Path) -> None:
    config = make_config("digits5", "acl", changes=["training.epochs=2"])
    accuracy = run(config, tmp_path).acc
    (stored,) = find_runs(tmp_path, [config.name])
    stream = make_stream("digits5")
    net = acl_codes.network_of(stored, stream)
    found = [acl_codes.codes(net, task.index, stream.load(task).test) for task in stream.tasks]
    assert sum(each.accuracy for each in found) / 5 == pytest.approx(accuracy)
    with torch.no_grad():  # heads that see nothing of one of the codes
        for head in net.heads:
            head[0].weight[:, : head[0].in_features // 2] = 0
    blind = acl_codes.codes(net, 0, stream.load(stream.tasks[0]).test)
    assert blind.without_private == blind.accuracy
    assert blind.shared_spread == found[0].shared_spread > 0


def test_the_bytes_of_a_protection_are_those_of_the_arithmetic() -> None:
    adapters = script("benchmarks/adapters")
    net = torch.nn.Sequential(*(torch.nn.Linear(96, 96, bias=False) for _ in range(3)))
    table = table_of(protect(net, [torch.randn(128, 96)], rules=Rules.directions(strongest=16)).state_dict())
    saved = [*table["directions"].values(), *(tensor["fisher"] for tensor in table["tensors"].values())]
    size = sum(value.nbytes for part in saved for value in part.values() if isinstance(value, Tensor))
    assert size == adapters.file_bytes(adapters.Model(1, ((96, 96, 3),)), 16)


def test_a_measured_hold_has_something_to_do() -> None:
    adapters = script("benchmarks/adapters")
    torch.manual_seed(0)
    held = adapters.layer(48, 64, 8)
    term = adapters.Term(torch.randn(4, 64) / 8, torch.randn(48, 4) * 0.01, 2.0)
    before = held.cost([term])
    assert held.hold_([term], 1.0) < 0.5 * before
