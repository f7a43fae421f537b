"""The same runs on other engines give the same bytes. Ray and submitit are tested where they are installed."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bitfreeze
from bitfreeze.lab.cli.run_display import SweepLines
from bitfreeze.lab.runs.checkpoint import load_checkpoint, save_checkpoint
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.runs.values import parse_options
from bitfreeze.lab.sweeps import Local, RayCluster, Slurm, engines
from bitfreeze.lab.sweeps.ray_cluster import Keeper, read_files, run_on_node, write_files
from bitfreeze.lab.sweeps.sweep import sweep

SMALL = ["training.epochs=2", "network.hidden=[16]"]
LONG = ["training.epochs=60", "training.patience=60", "network.hidden=[64]"]


def accuracies(root, configs):
    return {config.name: (root / config.name / "accuracy.csv").read_bytes() for config in configs}


def expected(tmp_path, configs):
    for config in configs:
        run(config, tmp_path / "alone")
    return accuracies(tmp_path / "alone", configs)


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_a_library_that_is_missing_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, {"ray": "ray", "slurm": "submitit"}[name], None)
    with pytest.raises(ValueError, match=f"needs the extra '{name}'"):
        engines[name]("", 1, {})


def test_the_local_engine_has_no_address():
    with pytest.raises(ValueError, match="no address"):
        Local("somewhere")


def test_options_are_parsed():
    assert parse_options(["num_cpus=2", "memory=2e9", "slurm_partition=cpu", "collect=true"]) == {
        "num_cpus": 2, "memory": 2e9, "slurm_partition": "cpu", "collect": True,
    }  # fmt: skip
    with pytest.raises(ValueError, match="name=value"):
        parse_options(["num_cpus"])


def test_files_of_a_run_travel_whole(tmp_path):
    config = make_config("digits5", "blip", changes=SMALL)
    run(config, tmp_path / "here")
    files = read_files(tmp_path / "here" / config.name)
    (tmp_path / "here" / config.name / ".half.part").write_text("being written")
    assert read_files(tmp_path / "here" / config.name) == files
    write_files(tmp_path / "there" / config.name, files)
    assert read_files(tmp_path / "there" / config.name) == files
    assert {"config.toml", "events.jsonl", "accuracy.csv"} < files.keys()
    assert run(config, tmp_path / "there").name == "finished"
    with pytest.raises(ValueError, match="outside"):
        write_files(tmp_path / "there", {"../escaped": b""})
    assert not (tmp_path / "escaped").exists()


def number_and_state(place):
    found = load_checkpoint(place / "checkpoint")
    return found.number, found.state


class SavesSix:
    """A process that saves a checkpoint whenever it is waited for, and ends after six."""

    returncode = 0

    def __init__(self, place, limit=6):
        self.place, self.limit, self.saved = place, limit, 0
        self.found = load_checkpoint(place / "checkpoint")

    def communicate(self, timeout=None):
        if self.saved == self.limit:
            return "", ""
        first = 0 if self.found is None else self.found.number + 1
        save_checkpoint(self.place / "checkpoint", first + self.saved, {"step": first + self.saved})
        (self.place / "events.jsonl").write_text("{}\n" * self.saved)
        self.saved += 1
        raise subprocess.TimeoutExpired("bitfreeze", timeout)


def test_a_driver_that_collects_keeps_no_more_checkpoints_than_the_node(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda value: value))
    started, keeper = [], Keeper(str(tmp_path))
    remote = SimpleNamespace(
        files=SimpleNamespace(remote=keeper.files), keep=SimpleNamespace(remote=keeper.keep)
    )  # an actor, as seen from a task

    def start(command, runs, device):
        started.append(SavesSix(Path(runs) / "digits5/ft/seed0"))
        return started[-1]

    monkeypatch.setattr("bitfreeze.lab.sweeps.ray_cluster.start", start)
    place = tmp_path / "digits5/ft/seed0"
    for last in (5, 11):
        run_on_node("bitfreeze run digits5", "digits5/ft/seed0", str(tmp_path / "not shared"), remote, "cpu")
        assert sorted(path.name for path in (place / "checkpoint").iterdir()) == [f"{last - 1:06d}", f"{last:06d}"]
        assert number_and_state(place) == (last, {"step": last})
    assert (started[1].found.number, started[1].found.state) == (5, {"step": 5})  # taken up by another node
    assert (place / "events.jsonl").read_text() == "{}\n" * 5
    keeper.keep("digits5/ft/seed0", {}, ["events.jsonl"])  # a node that has not saved anything yet
    assert number_and_state(place) == (11, {"step": 11})


@pytest.mark.filterwarnings("ignore")
def test_slurm_jobs_on_this_machine(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path / "runs"))
    configs = [make_config("digits5", method, changes=SMALL) for method in ("ft", "blip")]
    bad = make_config("digits5", "ft", changes=[*SMALL, "training.lr=1e20"])
    outcomes = sweep([*configs, bad], Slurm("local", options={"timeout_min": 5}), SweepLines())
    errors = {outcome.config.name: outcome.error for outcome in outcomes}
    assert [errors[config.name] for config in configs] == ["", ""]
    assert "the loss must be finite, got nan" in errors[bad.name]
    assert accuracies(tmp_path / "runs", configs) == expected(tmp_path, configs)


@pytest.mark.filterwarnings("ignore")
def test_slurm_that_is_not_there_is_one_sentence(monkeypatch, tmp_path):
    pytest.importorskip("submitit")
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="--address local"):
        Slurm()


class KillsNode(SweepLines):
    """Takes a node away as soon as every run that goes on has finished a task."""

    def __init__(self, cluster, node, root, count):
        self.cluster, self.node, self.root, self.count = cluster, node, root, count
        self.killed = False

    def look(self, config):
        going = [file for file in self.root.rglob("accuracy.csv") if not (file.parent / "finished").exists()]
        if not self.killed and len(going) >= self.count:
            self.killed = True
            self.cluster.remove_node(self.node, allow_graceful=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("collect", [False, True], ids=["shared disk", "files are sent"])
def test_a_ray_cluster_that_loses_a_node(tmp_path, monkeypatch, collect):
    """Nothing is lost, nothing is run to a different result."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    root = tmp_path / "runs"
    monkeypatch.setenv("BITFREEZE_RUNS", str(root))
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_health_check_period_ms", "1000")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "3")
    monkeypatch.setattr("bitfreeze.lab.sweeps.ray_cluster.SEND_SECONDS", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(Path(bitfreeze.__file__).parents[1]))
    configs = [make_config("digits5", method, changes=LONG) for method in ("ft", "blip", "ewc")]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        engine = RayCluster(cluster.address, options={"collect": collect})
        display = KillsNode(cluster, node, root, 2)
        outcomes = sweep(configs, engine, display)
    finally:
        cluster.shutdown()
    assert display.killed
    assert [outcome.error for outcome in outcomes] == ["", "", ""]
    assert accuracies(root, configs) == expected(tmp_path, configs)
    starts = {config.name: started(root, config) for config in configs}
    assert any(len(learned) > 1 and learned[-1] > 0 for learned in starts.values()), starts  # taken up, not begun again
    assert not list(root.glob(".driver-*"))


def started(root, config):
    """How many tasks were learned each time that the run was started."""
    lines = (root / config.name / "events.jsonl").read_text().splitlines()
    return [event["learned"] for event in map(json.loads, lines) if event["event"] == "started"]


@pytest.mark.filterwarnings("ignore")
def test_ray_by_itself(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(Path(bitfreeze.__file__).parents[1]))
    configs = [make_config("digits5", method, changes=SMALL) for method in ("ft", "blip")]
    bad = make_config("digits5", "ft", changes=[*SMALL, "training.lr=1e20"])
    outcomes = sweep([*configs, bad], RayCluster(workers=2), SweepLines())
    errors = {outcome.config.name: outcome.error for outcome in outcomes}
    assert [errors[config.name] for config in configs] == ["", ""]
    assert "the loss must be finite, got nan" in errors[bad.name]
    assert accuracies(tmp_path / "runs", configs) == expected(tmp_path, configs)
