"""What is saved: its size, loading it, renaming, going on bit for bit."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from bitfreeze import BLIP, Rules
from support.protected_nets import (
    GUARDS,
    RULES,
    Net,
    assert_inside,
    assert_same,
    make_task,
    protected,
    shift,
    total_bytes,
    train_sgd,
    watched,
)

pytestmark = pytest.mark.filterwarnings("ignore:no weight reached the edge", "ignore:no watched weight has changed")


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def learn(model: Net, blip: BLIP, task: int) -> None:
    torch.manual_seed(task)
    train_sgd(model, task)
    blip.consolidate([make_task(task)])


def saved_tensors(blip: BLIP) -> list[Tensor]:
    return [v for saved in blip.state_dict()["tensors"].values() for v in saved.values() if isinstance(v, Tensor)]


@pytest.mark.parametrize("rules", RULES)
def test_a_run_goes_on_bit_for_bit_from_what_was_saved(rules: str) -> None:
    model = Net()
    blip = BLIP(model, budget=0.2, rules=RULES[rules])
    blip.attach()
    for task in range(2):
        learn(model, blip, task)
    saved = through_a_file({"model": model.state_dict(), "blip": blip.state_dict()})
    assert_same(saved["blip"], blip.state_dict())

    other = Net(seed=9)
    resumed = BLIP(other, budget=0.2, rules=RULES[rules])
    resumed.attach()
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["blip"])
    for task in range(2, 4):
        learn(model, blip, task)
        learn(other, resumed, task)
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert_same(resumed.state_dict(), blip.state_dict())
    assert resumed.tasks == 4


def test_loading_works_in_any_order_and_before_attaching(guard: str) -> None:
    model, blip = protected(guard=guard)
    weights, state = model.state_dict(), blip.state_dict()
    other = Net(seed=9)
    resumed = BLIP(other, **GUARDS[guard])
    resumed.load_state_dict(state)
    other.load_state_dict(weights)
    resumed.attach()
    assert_same(resumed.intervals(), blip.intervals())
    assert_same(resumed.frozen_bits(), blip.frozen_bits())
    train_sgd(other, 1, steps=1)
    shift(other)
    train_sgd(other, 1, steps=1)
    assert_inside(resumed)


def test_the_state_is_a_copy(guard: str) -> None:
    model, blip = protected(guard=guard)
    state, bits = blip.state_dict(), blip.frozen_bits()
    other = BLIP(Net(), **GUARDS[guard])
    other.load_state_dict(state)
    for tensors in (*state["tensors"].values(), bits):
        for value in tensors.values():
            if isinstance(value, Tensor):
                value.fill_(1)
    assert blip.frozen_bits()["backbone.0.weight"].max() > 1
    assert_same(other.state_dict(), blip.state_dict())
    del model


def test_the_solved_prior_is_saved_and_used_again() -> None:
    _, blip = protected()
    assert blip.prior is not None
    fresh = BLIP(Net(), budget=0.3)
    fresh.load_state_dict(through_a_file(blip.state_dict()))
    assert fresh.prior == blip.prior
    fresh.model.load_state_dict(blip.model.state_dict())
    fresh.model.heads.append(nn.Linear(8, 3))
    report = fresh.consolidate([make_task(1)], forward=lambda x: fresh.model(x, 4))
    assert report.prior == blip.prior
    assert report.tensors["heads.4.weight"].frozen > 0


def test_a_state_from_before_the_first_task(guard: str) -> None:
    blip = BLIP(Net(), **GUARDS[guard])
    other = BLIP(Net(seed=1), **GUARDS[guard])
    other.load_state_dict(through_a_file(blip.state_dict()))
    blip.attach()
    other.load_state_dict(through_a_file(blip.state_dict()))
    assert other.prior is None
    assert_same(other.intervals()["heads.0.bias"], blip.intervals()["heads.0.bias"])


def test_parameters_that_the_state_does_not_know_start_anew(guard: str) -> None:
    _, blip = protected(guard=guard)
    larger = Net(tasks=6)
    other = BLIP(larger, **GUARDS[guard])
    with pytest.warns(UserWarning, match=r"^'heads\.4\.bias' and 3 more is watched here and not in the state"):
        other.load_state_dict(blip.state_dict())
    larger.load_state_dict(blip.model.state_dict(), strict=False)
    report = other.consolidate([make_task(1)], forward=lambda x: larger(x, 5))
    assert report.task == 2
    tasks = {name: saved["tasks"] for name, saved in other.state_dict()["tensors"].items()}
    assert tasks["heads.5.weight"] == 1
    assert tasks["heads.0.weight"] == 2


class Renamed(nn.Module):
    """The same network under other names."""

    def __init__(self) -> None:
        super().__init__()
        plain = Net()
        self.body, self.tops = plain.backbone, plain.heads

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        return self.tops[task](self.body(x))


def new_name(name: str) -> str:
    return name.replace("backbone", "body").replace("heads", "tops")


@pytest.mark.parametrize("way", ["function", "mapping"])
def test_renaming(way: str, guard: str) -> None:
    _, blip = protected(guard=guard)
    other = BLIP(Renamed(), **GUARDS[guard])
    names = {name: new_name(name) for name in blip.frozen_bits()}
    other.load_state_dict(blip.state_dict(), rename=new_name if way == "function" else names)
    expected = {new_name(name): value for name, value in blip.frozen_bits().items()}
    assert_same(other.frozen_bits(), expected)
    other.clamp_()
    assert_inside(other)


def test_a_mapping_may_name_only_what_changed(guard: str) -> None:
    model, blip = protected(guard=guard)
    other = Net()
    other.add_module("tail", other.heads[3])
    del other.heads[3]
    fresh = BLIP(other, **GUARDS[guard])
    names = {"heads.3.weight": "tail.weight", "heads.3.bias": "tail.bias"}
    fresh.load_state_dict(blip.state_dict(), rename=names)
    expected = {names.get(name, name): value for name, value in blip.frozen_bits().items()}
    assert_same(fresh.frozen_bits(), expected)
    del model


# size


@pytest.mark.parametrize("rules", [Rules.strict(), Rules.released(), Rules.text()], ids=["strict", "released", "text"])
def test_9_bytes_a_parameter_are_saved_and_17_held_while_training(rules: Rules) -> None:
    model = Net()
    entries = sum(parameter.numel() for parameter in model.parameters())
    blip = BLIP(model, rules=rules)
    blip.attach()
    assert blip.nbytes() == blip.nbytes(cache=True) == 0
    for task in range(2):
        train_sgd(model, task)
        blip.consolidate([make_task(task)])
        assert blip.nbytes() == total_bytes(saved_tensors(blip)) == 9 * entries
    blip.clamp_()
    assert blip.nbytes() == 9 * entries
    assert blip.nbytes(cache=True) == 17 * entries


@pytest.mark.filterwarnings("ignore:.*has run out of free bits")
def test_nothing_grows_from_task_1_to_task_200() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    blip = BLIP(model, prior=1.0)
    blip.attach()
    optimizer = SGD(model.parameters(), lr=0.1)
    sizes = []
    for task in range(200):
        x, y = make_task(task, rows=8, inputs=3, classes=2)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        blip.consolidate([x])
        blip.clamp_()
        file = io.BytesIO()
        torch.save(blip.state_dict(), file)
        held = (len(saved_tensors(blip)), total_bytes(saved_tensors(blip)), len(file.getvalue()))
        sizes.append((blip.nbytes(), blip.nbytes(cache=True), *held, len(list(blip._attachments))))
    assert set(sizes) == {sizes[0]}
    assert blip.tasks == 200


def test_straight_through_keeps_theta_beside_the_rounded_weights() -> None:
    model, blip = protected(bits=8, rules=RULES["straight_through"])
    train_sgd(model, 1, rate=0.01)
    for name, saved in blip.state_dict()["tensors"].items():
        step = saved["bound"] / 2**8
        value = watched(blip)[name] / step
        torch.testing.assert_close(value, value.round(), rtol=0, atol=1e-4)
        assert (saved["residual"].abs() <= step / 2 * 1.001).all()
        assert saved["residual"].any()


def test_straight_through_saves_no_residual_of_weights_that_were_overwritten() -> None:
    model, blip = protected(bits=8, rules=RULES["straight_through"])
    earlier = {name: value.clone() for name, value in model.state_dict().items()}
    train_sgd(model, 1, rate=0.01)
    assert all("residual" in saved for saved in blip.state_dict()["tensors"].values())
    model.load_state_dict(earlier)
    assert not any("residual" in saved for saved in blip.state_dict()["tensors"].values())


def test_a_renaming_that_merges_two_tensors_is_refused(guard: str) -> None:
    _, blip = protected(guard=guard)
    state = blip.state_dict()
    with pytest.raises(ValueError, match="rename must give each saved tensor a name of its own"):
        blip.load_state_dict(state, rename=lambda name: "backbone.0.weight")


def stranger_with(state: dict[str, Any], guard: str) -> tuple[Net, BLIP]:
    """A network whose weights are others than those that the state was saved with."""
    model = Net(seed=1)
    blip = BLIP(model, **GUARDS[guard])
    blip.load_state_dict(state)
    blip.attach()
    return model, blip


def test_weights_that_do_not_belong_to_a_loaded_state_stop_at_the_first_step(guard: str) -> None:
    """Forgotten model weights would be clipped into the intervals of others, and all that was learned be lost."""
    model, blip = protected(guard=guard)
    stranger, fresh = stranger_with(blip.state_dict(), guard)
    train_sgd(model, 1, steps=1)  # a step of others is no reason to look
    before = [parameter.detach().clone() for parameter in stranger.parameters()]
    with pytest.raises(RuntimeError, match=r"that the last task left, got .*load those that belong to a loaded state"):
        train_sgd(stranger, 1)
    assert all(torch.equal(was, now) for was, now in zip(before, stranger.parameters(), strict=True))
    stranger.load_state_dict(model.state_dict())  # after the state is as good as before it
    train_sgd(stranger, 1)
    assert_inside(fresh)


def test_clamping_says_that_weights_are_meant_to_be_clipped(guard: str) -> None:
    stranger, fresh = stranger_with(protected(guard=guard)[1].state_dict(), guard)
    fresh.clamp_()
    train_sgd(stranger, 1)
    assert_inside(fresh)


def test_it_prints_how_far_it_is() -> None:
    _, blip = protected()
    assert repr(BLIP(Net(), budget=0.1)) == "BLIP(bits=20, budget=0.1, tasks=0)"
    assert repr(blip) == "BLIP(bits=20, budget=0.3, tasks=1)"
