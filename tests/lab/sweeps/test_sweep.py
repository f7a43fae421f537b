"""Many runs at a time."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from bitfreeze.lab.cli.run_display import SweepLines, SweepLive
from bitfreeze.lab.cli.training import parse_seeds
from bitfreeze.lab.results.rows import finished_rows
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.sweeps import Ending, Local
from bitfreeze.lab.sweeps.sweep import grid_changes, plan, sweep
from support.cut_off import hear_ctrl_c

SMALL = ["training.epochs=2", "network.hidden=[16]"]


def test_seeds():
    assert parse_seeds("0-2,5") == [0, 1, 2, 5]
    with pytest.raises(ValueError, match="0-4 or 0,2,5"):
        parse_seeds("a")


def test_a_grid_is_all_combinations_and_multiples_are_of_what_the_preset_has():
    base = make_config("mnist5", "blip", "released")
    assert grid_changes([], base) == [()]
    assert grid_changes(["method.prior=20x,1x,0.1x"], base) == [("method.prior=2e-10",), (), ("method.prior=1e-12",)]
    assert grid_changes(["network.hidden=[5, 6],[7]", "training.epochs=1,0.05x"], base) == [
        ("network.hidden=[5, 6]", "training.epochs=1"), ("network.hidden=[5, 6]", "training.epochs=10"),
        ("network.hidden=[7]", "training.epochs=1"), ("network.hidden=[7]", "training.epochs=10"),
    ]  # fmt: skip
    assert grid_changes(["training.steps=0.2x"], make_config("atari6", "ft")) == [("training.steps=2000000",)]
    values = [make_config("mnist5", "blip", "released", 0, point) for point in grid_changes(["method.prior=2x"], base)]
    assert values[0].method_options["prior"] == 2e-11


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        ("16,16", [("training.batch=16",)]),
        ("1x,64,1x", [()]),
        ("64,1x", [()]),
        ("16,0.25x,32", [("training.batch=16",), ("training.batch=32",)]),
    ],
)
def test_a_run_that_a_grid_names_twice_is_carried_out_once(values, changes):
    base = make_config("mnist5", "ft")
    assert base.training["batch"] == 64
    found = plan("mnist5", ["ft"], [0, 1], [], [f"training.batch={values}"])
    assert [(config.seed, config.changes) for config in found] == [(seed, made) for seed in (0, 1) for made in changes]


def test_a_grid_goes_through_multiples_of_what_was_set():
    changes = ["method.rules=strict", "method.prior=1e-9", "training.epochs=3"]
    found = plan("mnist5", ["blip"], [0], changes, ["method.prior=1x,2x"])
    assert [config.method_options["prior"] for config in found] == [1e-9, 2e-9]
    assert [config.training["epochs"] for config in found] == [3, 3]


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ("method.prior=2x", r"method.prior is none in the preset of blip, which 2x cannot multiply: give values"),
        ("method.rules=2x", r"method.rules is directions in the preset of blip"),
        ("method.prio=2x", r"no setting of method 'prio': did you mean prior"),
        ("method.prior", r"a grid is written part.name=value,value"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid, sentence):
    with pytest.raises(ValueError, match=sentence):
        grid_changes([grid], make_config("mnist5", "blip"))


def test_goes_on_past_a_run_that_fails_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path))
    bad = make_config("digits5", "ft", changes=[*SMALL, "training.lr=1e20"])
    good = [make_config("digits5", method, changes=SMALL) for method in ("ft", "blip")]
    outcomes = {o.config.name: o.error for o in sweep([bad, *good], Local(workers=2), SweepLines())}
    assert "the loss must be finite, got nan at task 1" in outcomes[bad.name]
    assert [outcomes[config.name] for config in good] == ["", ""]
    shown = capsys.readouterr().out
    assert "ft network.hidden=[16] training.epochs=2 seed 0: done" in shown
    assert "training.lr=1e20 seed 0: bitfreeze: the loss must be finite, got nan" in shown
    assert {row["method"] for row in finished_rows(tmp_path, "digits5")} == {"ft", "blip"}


def test_what_a_run_that_finished_warned_of_is_shown_below_its_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path))
    config = make_config("digits5", "blip", "strict", changes=[*SMALL, "method.budget=0.99"])
    with pytest.warns(UserWarning, match="run out of free bits") as caught:
        run(config, tmp_path / "alone")
    (outcome,) = sweep([config], Local(), SweepLines())
    assert outcome.warnings == tuple(dict.fromkeys(f"warning: {warning.message}" for warning in caught))
    shown = capsys.readouterr().out.splitlines()
    assert shown == [f"{config.title}: done", *(f"  {warning}" for warning in outcome.warnings)]


class Ended:
    """An engine whose runs have all ended, in these ways."""

    def __init__(self, endings):
        self.endings = list(endings)

    def submit(self, config):
        return config.seed

    def wait(self, jobs, seconds):
        return list(jobs)

    def ending(self, job):
        return self.endings[job]

    def close(self):
        pass


def test_a_warning_that_many_runs_give_is_shown_once(capsys):
    configs = [make_config("digits5", "ft", seed=seed) for seed in range(3)]
    endings = [Ending(warnings=("A: a", "B: b")), Ending("it failed"), Ending(warnings=("B: b", "C: [c]"))]
    said = ["ft seed 0: done", "  A: a", "  B: b", "ft seed 1: it failed", "ft seed 2: done", "  C: [c]"]
    sweep(configs, Ended(endings), SweepLines())
    assert capsys.readouterr().out.splitlines() == said
    screen = io.StringIO()
    with SweepLive(Console(file=screen, width=160)) as display:
        sweep(configs, Ended(endings), display)
    *shown, bar = (line.rstrip() for line in screen.getvalue().splitlines())
    assert shown == said
    assert "3/3" in bar


def test_a_swept_run_is_the_run_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path / "swept"))
    config = make_config("digits5", "blip", changes=SMALL)
    sweep([config], Local(), SweepLines())
    run(config, tmp_path / "alone")
    swept, alone = (RunFolder(tmp_path / side / config.name) for side in ("swept", "alone"))
    assert (swept.path / "accuracy.csv").read_bytes() == (alone.path / "accuracy.csv").read_bytes()


def test_a_terminal_shows_all_runs_and_each_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path))
    configs = [make_config("digits5", "ft", seed=seed, changes=["training.epochs=20"]) for seed in (0, 1)]
    screen = io.StringIO()
    with SweepLive(Console(file=screen, force_terminal=True, width=160)) as display:
        sweep(configs, Local(workers=2), display)
    shown = screen.getvalue()
    assert "2/2" in shown
    assert "seed 1: done" in shown
    assert "loss" in shown


@pytest.mark.parametrize("whole_group", [True, False], ids=["as a terminal does", "to the sweep alone"])
def test_ctrl_c_stops_all_runs_and_begins_no_more(tmp_path, whole_group):
    command = [sys.executable, "-m", "bitfreeze", "sweep", "digits5", "--methods", "ft", "--seeds", "0-3"]
    changes = ["--workers", "1", "--set", "training.epochs=100000", "training.patience=100000"]
    environment = {**os.environ, "BITFREEZE_RUNS": str(tmp_path)}
    process = subprocess.Popen(
        [*command, *changes], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    try:
        while not list(tmp_path.rglob("events.jsonl")):
            time.sleep(0.2)
            assert process.poll() is None
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 130
        assert "stopped; the same command goes on" in said
        assert "Traceback" not in said
        (config,) = tmp_path.rglob("config.toml")
        with RunFolder(config.parent).locked():  # nobody works on the run any more
            pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
