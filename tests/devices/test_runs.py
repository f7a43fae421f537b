"""Runs of the laboratory on a device: what the CPU learns, moved between devices, full devices, games and sweeps."""

import json
import sys
from pathlib import Path

import pytest
import torch

from bitfreeze import lab
from bitfreeze.lab.devices import DeviceFull, current_device, described, find_device, on_device
from bitfreeze.lab.methods import methods
from bitfreeze.lab.nets.norms import TaskNorm
from bitfreeze.lab.runs.checkpoint import load_checkpoint
from bitfreeze.lab.runs.config import Config, make_config
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.tasks import Split, TrainingDiverged
from bitfreeze.lab.training import loop, placed, placement
from support import standin
from support.cut_off import Cut, cut_after
from support.host_reads import HostReads
from support.small_tasks import STREAM

SMALL = ["training.epochs=2", "network.hidden=[24]"]
OWN = {name for name, method in methods.items() if method.record.own_networks}
RANDOM_ON_DEVICE = {"ucb", "vcl", "acl", "acl_r"}  # draw on the device: other numbers than on the CPU


def config_of(method: str) -> Config:
    return make_config("digits5", method, changes=[c for c in SMALL if not (method in OWN and "network" in c)])


def carried_out(config: Config, root: Path, device: torch.device, **options) -> RunFolder:
    with on_device(device):
        run(config, root, **options)
    return RunFolder(root / config.name)


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
@pytest.mark.parametrize("method", methods)
def test_every_method_learns_what_it_does_on_the_cpu(method, device, tmp_path) -> None:
    config = config_of(method)
    here = carried_out(config, tmp_path / "cpu", torch.device("cpu"))
    there = carried_out(config, tmp_path / "device", device)
    for mine, theirs in zip(here.read_matrix(), there.read_matrix(), strict=True):
        assert mine == pytest.approx(theirs, abs=12 if method in RANDOM_ON_DEVICE else 2.5)
    assert here.read_config()["environment"]["device"] == "cpu"
    assert there.read_config()["environment"]["device"] == described(device)
    assert {**here.read_config(), "environment": 0} == {**there.read_config(), "environment": 0}


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
@pytest.mark.parametrize("method", methods)
def test_a_run_that_is_cut_off_ends_with_the_same_bytes(method, device, tmp_path) -> None:
    """Random states of the device are saved and set again, and every state comes back to the device."""
    config = config_of(method)
    whole = carried_out(config, tmp_path / "whole", device)
    for attempt in range(20):
        try:
            cut = [cut_after(3, "epoch")]
            parts = carried_out(config, tmp_path / "parts", device, listeners=cut, checkpoint_seconds=0)
            break
        except Cut:
            torch.rand(3, device=device)
            assert attempt < 19
    assert (whole.path / "accuracy.csv").read_bytes() == (parts.path / "accuracy.csv").read_bytes()
    assert attempt >= 2
    losses = [[e.train_loss for e in folder.events() if e.name == "epoch"] for folder in (whole, parts)]
    assert losses[0] == losses[1]


def move(config: Config, root: Path, first: torch.device, second: torch.device) -> RunFolder:
    with pytest.raises(Cut):
        carried_out(config, root, first, listeners=[cut_after(5, "epoch")], checkpoint_seconds=0)
    words = rf"begun with device {first.type}.*, now {second.type}.*: it goes on, but its last bits may differ"
    with pytest.warns(UserWarning, match=words):
        return carried_out(config, root, second)


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
@pytest.mark.parametrize("method", ["blip", "ewc", "er", "hat", "vcl", "joint", "agem"])
def test_a_run_goes_on_on_another_device(method, device, tmp_path) -> None:
    config, cpu = config_of(method), torch.device("cpu")
    whole = carried_out(config, tmp_path / "whole", cpu)
    for name, (first, second) in {"there": (cpu, device), "back": (device, cpu)}.items():
        moved = move(config, tmp_path / name, first, second)
        for mine, theirs in zip(moved.read_matrix(), whole.read_matrix(), strict=True):
            assert mine == pytest.approx(theirs, abs=12 if method in RANDOM_ON_DEVICE else 3)
        assert moved.read_config()["environment"]["device"] == f"{first.type}, then {second.type}"


def test_a_checkpoint_is_on_the_host_and_knows_the_random_states_of_all_devices(device, tmp_path) -> None:
    config = config_of("blip")
    with pytest.raises(Cut):
        carried_out(config, tmp_path, device, listeners=[cut_after(3, "epoch")], checkpoint_seconds=0)
    found = load_checkpoint(tmp_path / config.name / "checkpoint")
    assert found is not None
    states = found.state["random"]["devices"][device.type]
    assert len(states) == torch.get_device_module(device).device_count()
    assert all(tensor.is_cpu for tensor in found.state["net"].values())


def test_a_finished_run_keeps_the_device_that_it_was_made_on(device, tmp_path) -> None:
    config = config_of("ft")
    folder = carried_out(config, tmp_path, torch.device("cpu"))
    carried_out(config, tmp_path, device)
    assert folder.read_config()["environment"]["device"] == "cpu"
    assert "device cpu" in lab.table("digits5", root=tmp_path).rows[0]["environment"]


# where the samples are


def test_samples_that_fit_live_on_the_device_as_bytes(device) -> None:
    split = STREAM.load(STREAM.tasks[0]).train
    with on_device(device):
        there = placed(split)
    assert there.x.device == there.y.device == device
    assert there.x.dtype == torch.uint8
    rows = torch.tensor([3, 1, 2])
    for mine, theirs in zip(split.take(rows), there.take(rows), strict=True):
        assert theirs.device == device
        assert torch.equal(mine, theirs.cpu())


def test_more_samples_than_fit_are_sent_batch_by_batch_from_pinned_memory(device, monkeypatch) -> None:
    sent, to = [], torch.Tensor.to

    def noted(tensor, *args, **options):
        if tensor.is_cpu and args and args[0] == device:
            sent.append((tensor.is_pinned(), options.get("non_blocking", False), tensor.dtype))
        return to(tensor, *args, **options)

    monkeypatch.setattr(placement, "UNKNOWN", 1000)
    monkeypatch.setattr(placement, "SHARE", 0)
    split = STREAM.load(STREAM.tasks[0]).train
    with on_device(device):
        there = placed(split)
    assert there.x.is_cpu
    monkeypatch.setattr(torch.Tensor, "to", noted)
    for (x, y), (mine, labels) in zip(split.batches(50), there.batches(50), strict=True):
        assert mine.device == labels.device == device
        assert torch.equal(mine.cpu(), x)
        assert torch.equal(labels.cpu(), y)
    assert (True, True, torch.uint8) in sent
    assert all(pinned and at_once for pinned, at_once, _ in sent)


@pytest.mark.parametrize("method", ["ft", "er", "joint", "blip"])
def test_a_run_is_the_same_wherever_its_samples_are(method, device, tmp_path, monkeypatch) -> None:
    config = config_of(method)
    near = carried_out(config, tmp_path / "near", device)
    monkeypatch.setattr(placement, "UNKNOWN", 1000)
    monkeypatch.setattr(placement, "SHARE", 0)
    far = carried_out(config, tmp_path / "far", device)
    losses = [[e.train_loss for e in folder.events() if e.name == "epoch"] for folder in (near, far)]
    assert losses[0] == losses[1]


# what a step waits for


@pytest.mark.parametrize("method", ["ft", "ewc", "lwf", "hat", "imm"])
def test_steps_of_the_laboratory_read_losses_only_now_and_then(method, device, tmp_path, monkeypatch) -> None:
    counts: list[int] = []
    epoch = loop.Training._train_epoch

    def counted(training):
        with HostReads() as reads:
            loss = epoch(training)
        counts.append(reads.total)
        steps = -(-len(training.data.train) // training.settings.batch)
        assert reads.total <= -(-steps // loop.READ_EVERY), reads.names
        return loss

    monkeypatch.setattr(loop.Training, "_train_epoch", counted)
    carried_out(config_of(method), tmp_path, device)
    assert len(counts) == 10
    assert all(counts)


def test_norms_of_tasks_wait_for_nothing_once_they_know_their_task(device) -> None:
    norm = TaskNorm(3, 2, "per_task").to(device)
    x = torch.randn(4, 3, 5, 5, device=device)
    norm(x)
    with HostReads() as reads:
        norm(x)
        norm(x)
    assert not reads.total, reads.names
    norm.load_state_dict({name: value.cpu() for name, value in TaskNorm(3, 2, "per_task").state_dict().items()})
    norm.task = 1
    norm(x)
    assert norm.trained.tolist() == [1, 1]


def test_a_loss_that_is_not_finite_is_told_with_its_step(device, tmp_path) -> None:
    config = make_config("digits5", "ft", changes=[*SMALL, "training.lr=1e38"])
    with pytest.raises(TrainingDiverged, match=r"task 1, epoch 1, step \d"):
        carried_out(config, tmp_path, device)


# a device that is full


def test_a_full_device_is_told_in_a_sentence_and_the_run_goes_on(stand_in, tmp_path) -> None:
    config = config_of("blip")
    whole = carried_out(config, tmp_path / "whole", stand_in)

    def fill(event) -> None:
        if event.name == "epoch" and (event.task, event.epoch) == (2, 1):
            standin.set_memory_limit(standin.memory_used(stand_in.index))

    try:
        with pytest.raises(DeviceFull, match=r"^standin:0 is full \(.*out of memory.*--device cpu") as caught:
            lab.run(config, device="standin", listeners=[fill], root=tmp_path / "cut", checkpoint_seconds=0)
    finally:
        standin.set_memory_limit(None)
    assert "kept up to the last checkpoint" in caught.value.__notes__[0]
    assert current_device() == torch.device("cpu")
    lab.run(config, device="standin", root=tmp_path / "cut")
    again = RunFolder(tmp_path / "cut" / config.name)
    assert (again.path / "accuracy.csv").read_bytes() == (whole.path / "accuracy.csv").read_bytes()


def test_samples_that_do_not_fit_after_all_stay_on_the_host(stand_in) -> None:
    split = STREAM.load(STREAM.tasks[0]).train
    standin.set_memory_limit(standin.memory_used(0) + 5000)
    try:
        with on_device(stand_in):
            there = placed(split)
    finally:
        standin.set_memory_limit(None)
    assert isinstance(there, Split)
    assert there.x.is_cpu
    assert there.device == stand_in


# games, sweeps and commands

GAMES = [
    'stream.envs=["CartPole-v1", "Acrobot-v1?permute=1"]', "training.steps=384", "training.copies=4",
    "training.rollout=16", "training.restart=2", "training.evaluations=2", "training.games=2",
    "training.final_games=3", "training.states=100", "training.game_steps=30",
    "training.epochs=2", "training.minibatches=2", "network.hidden=[16, 16]",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:no weight reached the edge")
@pytest.mark.parametrize("method", [name for name, m in methods.items() if "reinforcement" in m.record.trainers])
def test_games_are_those_of_the_cpu_and_go_on(method, device, tmp_path) -> None:
    """Actions are drawn with numbers of the host, so that the same games are played until rounding tells."""
    pytest.importorskip("gymnasium")
    config = make_config("control", method, changes=GAMES)
    here = carried_out(config, tmp_path / "cpu", torch.device("cpu"))
    whole = carried_out(config, tmp_path / "whole", device)
    for attempt in range(20):
        try:
            cut = [cut_after(3, "update")]
            parts = carried_out(config, tmp_path / "parts", device, listeners=cut, checkpoint_seconds=0)
            break
        except Cut:
            assert attempt < 19
    first = [next(e.loss for e in folder.events() if e.name == "update") for folder in (here, whole)]
    assert first[0] == pytest.approx(first[1], rel=1e-3)
    assert (whole.path / "score.csv").read_bytes() == (parts.path / "score.csv").read_bytes()
    weights = [(folder.path / "weights" / "task2.safetensors").read_bytes() for folder in (whole, parts)]
    assert weights[0] == weights[1]


@pytest.fixture
def plugin(device, monkeypatch) -> None:
    """Let other processes have the device too."""
    if device.type == "standin":
        monkeypatch.setenv("BITFREEZE_PLUGINS", standin.__file__)


@pytest.mark.usefixtures("plugin", "other")
def test_a_sweep_deals_its_runs_to_all_devices(device, tmp_path, monkeypatch) -> None:
    from bitfreeze.lab.sweeps import local

    used, start = [], local.start
    monkeypatch.setattr(local, "start", lambda *args: (used.append(args[2]), start(*args))[1])
    outcomes = lab.sweep("digits5", ["ft"], seeds=range(2), changes=SMALL, device=device.type, root=tmp_path)
    assert [outcome.error for outcome in outcomes] == [""] * 2
    assert set(used) == {f"{device.type}:0", f"{device.type}:1"}
    rows = lab.table("digits5", root=tmp_path).rows
    assert all(f"device {device.type}" in row["environment"] for row in rows)


def test_workers_beyond_the_devices_share_them(device) -> None:
    from bitfreeze.lab.sweeps import Local

    count = torch.get_device_module(device).device_count()
    for workers, expected in ((None, count), (2 * count, 2 * count), (1, 1)):
        engine = Local(workers=workers, device="auto")
        assert engine.pool._max_workers == expected
        names = [engine.idle.get() for _ in range(expected)]
        assert [names.count(f"{device.type}:{k}") for k in range(count)] == [
            expected // count + (k < expected % count) for k in range(count)
        ]
        engine.close()
    engine = Local(workers=3, device=f"{device.type}:0")
    assert [engine.idle.get() for _ in range(3)] == [f"{device.type}:0"] * 3
    engine.close()


def test_auto_is_the_accelerator(device, other) -> None:
    assert find_device("auto") == torch.device(device.type, 0)
    assert find_device(str(other)) == other
    assert find_device("cpu") == torch.device("cpu")
    here = f"{device.type}:0"
    with pytest.raises(ValueError, match=rf"device {device.type}:99 is not there: this machine has cpu and {here}"):
        find_device(f"{device.type}:99")


def test_ranks_take_a_device_each(device, other, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert find_device(device.type) == torch.device(device.type, rank)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")
    with pytest.raises(ValueError, match=r"each rank must have a device of its own, got 99 ranks and \d of"):
        find_device(device.type)


@pytest.mark.usefixtures("plugin")
def test_the_command_takes_a_device(device, tmp_path, monkeypatch, capsys) -> None:
    from bitfreeze.lab.cli.main import main

    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path))
    monkeypatch.setattr(
        sys, "argv", ["bitfreeze", "run", "digits5", "--method", "ft", "--device", str(device), "--set", *SMALL]
    )
    main()
    assert "kept in" in capsys.readouterr().out
    (events,) = tmp_path.glob("digits5/*/seed0/events.jsonl")
    assert json.loads(events.read_text().splitlines()[-1])["event"] == "finished"
    (config,) = tmp_path.glob("digits5/*/seed0/config.toml")
    assert f'device = "{described(device)}"' in config.read_text()
