"""A run that is cut off and started again ends as if nothing had happened."""

import contextlib
import os
import re
import shlex
import signal
import sys
import time

import pytest
import torch

from bitfreeze.lab.cli.main import main
from bitfreeze.lab.methods import Method, methods
from bitfreeze.lab.runs.checkpoint import load_checkpoint
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.errors import RunRefused
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.runs.supervised import SupervisedRun
from bitfreeze.lab.tasks import TrainingDiverged
from support.cut_off import Cut, complete, cut_after, kill_at_random, start

CHANGES = ["training.epochs=4", "network.hidden=[16]"]


def small(method, *options):
    """ACL's networks are its own."""
    changes = CHANGES[:1] if methods[method].record.own_networks else CHANGES
    return make_config("digits5", method, changes=[*changes, *options])


@pytest.mark.parametrize("method", methods)
def test_every_method_goes_on_to_the_same_bytes(method, tmp_path):
    config = small(method)
    run(config, tmp_path / "whole")
    while True:
        try:
            run(config, tmp_path / "parts", listeners=[cut_after(3, "epoch")], checkpoint_seconds=0)
            break
        except Cut:
            pass
    whole, parts = ((tmp_path / side / config.name / "accuracy.csv").read_bytes() for side in ("whole", "parts"))
    assert whole == parts
    events = RunFolder(tmp_path / "parts" / config.name).events()
    assert [event.n for event in events] == list(range(len(events)))
    assert sum(event.name == "epoch" for event in events) == 20


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("blip", []),
        ("blip", ["method.rules=text_straight_through"]),
        ("hat", ["method.clip=0.1"]),
        ("acl", ["method.clip=0.1"]),
    ],
)
def test_weights_too_are_the_same_to_the_last_bit(method, options, tmp_path):
    config = small(method, *options)
    for side in ("whole", "parts"):
        for limit in (3, 10**6) if side == "parts" else (10**6,):
            with contextlib.suppress(Cut):
                run(config, tmp_path / side, [cut_after(limit, "epoch")], checkpoint_seconds=0)
    whole, parts = (
        load_checkpoint(RunFolder(tmp_path / side / config.name).checkpoints) for side in ("whole", "parts")
    )
    assert whole is not None
    assert parts is not None
    a, b = whole.state["net"], parts.state["net"]
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("method", ["blip", "hat", "ucb", "acl_r"])
def test_training_in_bf16_goes_on_to_the_same_bytes(method, tmp_path):
    config = small(method, "training.precision=bf16")
    run(config, tmp_path / "whole")
    with pytest.raises(Cut):
        run(config, tmp_path / "parts", [cut_after(6, "epoch")], checkpoint_seconds=0)
    run(config, tmp_path / "parts", checkpoint_seconds=0)
    whole, parts = (RunFolder(tmp_path / side / config.name) for side in ("whole", "parts"))
    assert whole.read_matrix() == parts.read_matrix()
    assert whole.read_config()["environment"]["precision"] == "bf16"
    states = [load_checkpoint(folder.checkpoints).state for folder in (whole, parts)]
    a, b = (flat_tensors({"net": state["net"], "method": state["method"]}) for state in states)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert all(tensor.dtype != torch.bfloat16 for name, tensor in a.items() if name.startswith("/net/"))


def flat_tensors(state, path=""):
    """All tensors of a nested state, by their path."""
    if isinstance(state, torch.Tensor):
        return {path: state}
    parts = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return {name: found for key, part in parts for name, found in flat_tensors(part, f"{path}/{key}").items()}


def test_a_run_from_before_an_option_existed_goes_on_with_its_default(tmp_path):
    config = make_config("digits5", "ft", changes=CHANGES)
    with pytest.raises(Cut):
        run(config, tmp_path, [cut_after(3, "epoch")], checkpoint_seconds=0)
    file = tmp_path / config.name / "config.toml"
    assert 'precision = "float32"\n' in file.read_text()
    file.write_text(file.read_text().replace('precision = "float32"\n', ""))
    run(config, tmp_path)
    run(config, tmp_path / "whole")
    csv = [(root / config.name / "accuracy.csv").read_bytes() for root in (tmp_path, tmp_path / "whole")]
    assert csv[0] == csv[1]


def test_a_run_from_before_an_option_existed_is_refused_with_another_value(tmp_path):
    config = make_config("digits5", "ft", changes=[*CHANGES, "training.precision=bf16"])
    run(config, tmp_path)
    file = tmp_path / config.name / "config.toml"
    file.write_text(file.read_text().replace('precision = "bf16"\n', ""))
    with pytest.raises(RunRefused, match=r"training\.precision is None there and 'bf16' here"):
        run(config, tmp_path)


COMMAND = ["run", "digits5", "--threads", "1", "--checkpoint-seconds", "0", "--set", "training.epochs=20"]


def test_killed_at_twenty_random_moments(tmp_path):
    """In training, in the Fisher, between the parts of a checkpoint: wherever the signal finds it."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    name = make_config("digits5", "blip", changes=["training.epochs=20"]).name
    complete(whole, *COMMAND)
    kill_at_random(killed, name, COMMAND, times=20, whole=RunFolder(whole / name))
    complete(killed, *COMMAND)
    assert (killed / name / "accuracy.csv").read_bytes() == (whole / name / "accuracy.csv").read_bytes()


CHANGED = "bitfreeze run digits5 --method blip --seed 0 --set training.epochs=20 training.lr=0.01"


def test_ctrl_c_tells_what_is_kept_and_how_to_continue(tmp_path):
    pytest.importorskip("tensorboard")
    process = start(tmp_path, "run", "digits5", "--no-keep-bits", "--tensorboard", *COMMAND[2:], "training.lr=0.01")
    folder = tmp_path / make_config("digits5", "blip", changes=["training.epochs=20", "training.lr=0.01"]).name
    try:
        while not list(folder.glob("checkpoint/0*")):
            time.sleep(0.05)
            assert process.is_alive()
        os.kill(process.pid, signal.SIGINT)
        process.join(600)
        assert process.exitcode == 130
    finally:
        process.kill()
    text = (tmp_path / "output").read_text()
    assert re.search(r"stopped; kept up to the last checkpoint, \d s ago; to continue: ", text), text
    assert text.endswith(f"to continue: {CHANGED} --checkpoint-seconds 0.0 --no-keep-bits --tensorboard\n")
    assert load_checkpoint(folder / "checkpoint") is not None
    assert not (folder / "bits").exists()
    complete(tmp_path, *shlex.split(text.split("to continue: bitfreeze ")[1]))
    assert RunFolder(folder).result() is not None
    assert not (folder / "bits").exists()


def test_ctrl_c_before_the_first_checkpoint_says_so(tmp_path, monkeypatch, capsys):
    def stop(self, task, state):
        raise KeyboardInterrupt

    monkeypatch.setattr(SupervisedRun, "_train", stop)
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path))
    words = ["bitfreeze", "run", "digits5", "--set", "training.epochs=20", "training.lr=0.01"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == f"\nstopped; nothing was saved yet; to continue: {CHANGED}\n"


def test_two_processes_on_one_run(tmp_path):
    config = make_config("digits5", "ft", changes=CHANGES)
    folder = RunFolder(tmp_path / config.name)
    with folder.locked(), pytest.raises(RunRefused, match="another process is working on"):
        run(config, tmp_path)


def test_other_settings_under_the_same_name_are_refused_with_the_difference(tmp_path):
    config = make_config("digits5", "ft", changes=CHANGES)
    run(config, tmp_path)
    file = tmp_path / config.name / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.2", "lr = 0.3"))
    with pytest.raises(RunRefused, match=r"training\.lr is 0\.3 there and 0\.2 here"):
        run(config, tmp_path)


def test_a_finished_run_is_not_done_again(tmp_path):
    config = make_config("digits5", "ft", changes=CHANGES)
    first = run(config, tmp_path)
    assert run(config, tmp_path, listeners=[cut_after(0, "epoch")]) == first
    assert first == RunFolder(tmp_path / config.name).result()


def test_a_full_disk_ends_the_run_and_keeps_what_was_there(tmp_path, monkeypatch):
    config = make_config("digits5", "ft", changes=CHANGES)
    with pytest.raises(Cut):
        run(config, tmp_path, listeners=[cut_after(6, "epoch")], checkpoint_seconds=0)
    folder = tmp_path / config.name / "checkpoint"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def no_space(file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space left"):
            run(config, tmp_path, checkpoint_seconds=0)
    assert all(path.read_bytes() == data for path, data in before.items())
    run(config, tmp_path)


def test_a_diverging_run_keeps_its_last_good_checkpoint(tmp_path, monkeypatch):
    config = make_config("digits5", "ft", changes=CHANGES)
    run(config, tmp_path / "whole")
    optimizers = Method.optimizers
    with monkeypatch.context() as patch:
        patch.setattr(
            Method, "optimizers", lambda self, task, lr: optimizers(self, task, 1e20 if task.index == 2 else lr)
        )
        with pytest.raises(TrainingDiverged, match="task 3, epoch 1"):
            run(config, tmp_path / "diverged", checkpoint_seconds=0)
    found = load_checkpoint(tmp_path / "diverged" / config.name / "checkpoint")
    assert found is not None
    state = found.state
    assert state["training"] is None  # from between the second task and the third
    assert state["matrix"] == RunFolder(tmp_path / "whole" / config.name).read_matrix()[:2]
    assert all(value.isfinite().all() for value in state["net"].values())
    run(config, tmp_path / "diverged")
    whole, diverged = ((tmp_path / side / config.name / "accuracy.csv").read_bytes() for side in ("whole", "diverged"))
    assert whole == diverged
