"""Running statistics: a warning without freeze_statistics, and with it they stand still after the first task."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from bitfreeze import BLIP
from support.protected_nets import GUARDS, make_task, train

pytestmark = pytest.mark.filterwarnings(
    "ignore:no weight reached the edge", "ignore:no watched weight has changed", "ignore:watched parameters are trained"
)

KINDS = {
    "batch norm": lambda: nn.BatchNorm1d(8),
    "without affine": lambda: nn.BatchNorm1d(8, affine=False),
    "cumulative": lambda: nn.BatchNorm1d(8, momentum=None),
}


def network(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 3))


def statistics(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def learn(model: nn.Module, task: int) -> None:
    model.train()
    train(model, make_task(task), SGD(model.parameters(), lr=0.1), steps=3)


@pytest.mark.parametrize("watch", ["1", ["0", "1"], ["0.weight", "1.weight"]])
def test_they_stand_still_where_watch_gives_names(watch) -> None:
    model = network(nn.BatchNorm1d(8))
    with pytest.warns(UserWarning, match=r"1 module under watch \(BatchNorm1d\)"):
        BLIP(model, watch=watch)
    blip = BLIP(model, watch=watch, freeze_statistics=True)
    learn(model, 0)
    blip.consolidate([make_task(0)])
    before = statistics(model)
    learn(model, 1)
    assert same(statistics(model), before)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_they_stand_still_after_the_first_task(make, guard: str) -> None:
    model = network(make())
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    blip.attach()
    fresh = statistics(model)
    learn(model, 0)
    first = statistics(model)
    assert not same(first, fresh)
    blip.consolidate([make_task(0)])
    assert same(statistics(model), first)
    for task in (1, 2):
        learn(model, task)
        blip.consolidate([make_task(task)])
    assert same(statistics(model), first)
    assert model[0].training
    assert not model[1].training


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_without_it_there_is_a_warning_and_they_move(make) -> None:
    model = network(make())
    with pytest.warns(UserWarning, match=r"1 module under watch \(BatchNorm1d\); use freeze_statistics=True"):
        blip = BLIP(model)
    learn(model, 0)
    blip.consolidate([make_task(0)])
    first = statistics(model)
    learn(model, 1)
    assert not same(statistics(model), first)


def test_modules_without_running_statistics_are_no_matter(guard: str) -> None:
    model = nn.Sequential(network(nn.GroupNorm(2, 8)), nn.LayerNorm(3), nn.Dropout(0.5))
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    blip.consolidate([make_task(0)])
    model.train()
    assert all(module.training for module in model.modules())


def test_what_is_not_watched_is_left_alone() -> None:
    model = nn.Sequential(network(nn.BatchNorm1d(8)), nn.BatchNorm1d(3))
    with pytest.warns(UserWarning, match="beside watched ones"):
        blip = BLIP(model, watch=model[0], freeze_statistics=True)
    learn(model, 0)
    blip.consolidate([make_task(0)])
    held, free = statistics(model[0]), statistics(model[1])
    learn(model, 1)
    assert same(statistics(model[0]), held)
    assert not same(statistics(model[1]), free)
    assert model[1].training


def test_they_are_held_when_a_state_is_loaded_into_a_new_blip(guard: str) -> None:
    model = network(nn.BatchNorm1d(8))
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    learn(model, 0)
    blip.consolidate([make_task(0)])
    other = network(nn.BatchNorm1d(8))
    other.load_state_dict(model.state_dict())
    with pytest.warns(UserWarning, match="running statistics"):
        free = BLIP(other, **GUARDS[guard])
    with pytest.raises(ValueError, match=r"same settings, got freeze_statistics=True there, False here"):
        free.load_state_dict(blip.state_dict())
    BLIP(other, freeze_statistics=True, **GUARDS[guard]).load_state_dict(blip.state_dict())
    before = statistics(other)
    learn(other, 1)
    assert same(statistics(other), before)


def test_they_are_held_in_a_copy_by_its_own_module(guard: str) -> None:
    model = network(nn.BatchNorm1d(8))
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    learn(model, 0)
    blip.consolidate([make_task(0)])
    twin, _ = copy.deepcopy((model, blip))
    before = statistics(twin)
    model[1].training = twin[1].training = True
    learn(twin, 1)
    assert same(statistics(twin), before)
    assert not twin[1].training
    assert model[1].training  # train() of the copy is not that of the original


def test_a_compiled_model_holds_them_too(guard: str) -> None:
    model = network(nn.BatchNorm1d(8))
    compiled = torch.compile(model, backend="eager")
    blip = BLIP(compiled, freeze_statistics=True, **GUARDS[guard])
    blip.attach()
    for task in range(2):
        compiled.train()
        train(compiled, make_task(task), SGD(compiled.parameters(), lr=0.1))
        blip.consolidate([make_task(task)])
        if task == 0:
            first = statistics(model)
    assert same(statistics(model), first)


def test_a_failed_first_consolidate_does_not_hold_them(guard: str) -> None:
    model = network(nn.BatchNorm1d(8))
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    with pytest.raises(ValueError, match="no samples"):
        blip.consolidate([])
    before = statistics(model)
    learn(model, 0)
    assert not same(statistics(model), before)


def test_a_state_from_before_the_first_task_does_not_hold_them(guard: str) -> None:
    model = network(nn.BatchNorm1d(8))
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    blip.load_state_dict(BLIP(network(nn.BatchNorm1d(8)), freeze_statistics=True, **GUARDS[guard]).state_dict())
    before = statistics(model)
    learn(model, 0)
    assert not same(statistics(model), before)


def test_going_back_to_before_the_first_task_lets_them_go(guard: str) -> None:
    model = network(nn.BatchNorm1d(8))
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    start = blip.state_dict()
    learn(model, 0)
    blip.consolidate([make_task(0)])
    blip.load_state_dict(start)
    before = statistics(model)
    learn(model, 0)
    assert model[1].training
    assert not same(statistics(model), before)


def test_the_model_has_no_extra_keys(guard: str) -> None:
    model = network(nn.BatchNorm1d(8))
    keys = list(model.state_dict())
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    blip.attach()
    blip.consolidate([make_task(0)])
    assert list(model.state_dict()) == keys


def test_statistics_beside_what_is_watched_are_told() -> None:
    for settings in ({}, {"freeze_statistics": True}):
        with pytest.warns(UserWarning, match=r"of 1 module beside watched ones \('1', BatchNorm1d\); watch the whole"):
            BLIP(network(nn.BatchNorm1d(8)), watch=["0", "3"], **settings)


def test_statistics_of_heads_are_their_own_matter() -> None:
    body, heads = network(nn.LayerNorm(8)), nn.ModuleList(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    BLIP(nn.ModuleDict({"body": body, "heads": heads}), watch=body)


def test_detach_gives_back_a_plain_model(guard: str, tmp_path) -> None:
    model = network(nn.BatchNorm1d(8))
    blip = BLIP(model, freeze_statistics=True, **GUARDS[guard])
    blip.attach()
    blip.consolidate([make_task(0)])
    held = statistics(model)
    learn(model, 1)
    assert same(statistics(model), held)
    blip.detach()
    assert not any(name in vars(module) for module in model.modules() for name in ("train", "forward"))
    torch.save(model, tmp_path / "model.pt")
    assert b"bitfreeze" not in (tmp_path / "model.pt").read_bytes()
    learn(model, 1)
    assert not same(statistics(model), held)
    blip.attach()
    blip.clamp_()
    blip.consolidate([make_task(1)])
    held = statistics(model)
    learn(model, 2)
    assert same(statistics(model), held)
