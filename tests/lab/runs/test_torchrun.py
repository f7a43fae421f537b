"""One run on two ranks: the same result as on one, written once, and taken up again when a rank has died."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.start import run
from bitfreeze.lab.training.parallel import share_of
from bitfreeze.model.ranks import Ranks
from support import lab_ranks, leaving_rank
from support.lab_ranks import CHANGES, PARALLEL
from support.ranks import run_ranks_once

TIMEOUT = 200


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    found, root = run_ranks_once(lab_ranks.__file__, "lab", tmp_path_factory)
    return root, found


@pytest.mark.parametrize("name", PARALLEL)
def test_two_ranks_learn_what_one_does(roots, name, tmp_path):
    root, found = roots
    method, changes = PARALLEL[name]
    config = make_config("digits5", method, changes=changes)
    run(config, tmp_path)
    one, two = RunFolder(tmp_path / config.name), RunFolder(root / "disk of rank 0" / config.name)
    assert found[0][name] == found[1][name]
    for mine, theirs in zip(one.read_matrix(), two.read_matrix(), strict=True):
        assert mine == pytest.approx(theirs, abs=1.5)  # percent: a sample or two of the test data may flip
    losses = [[e.train_loss for e in folder.events() if e.name == "epoch"] for folder in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    assert two.read_config()["environment"]["ranks"] == 2


def test_nearly_all_bits_are_frozen_alike(roots, tmp_path):
    """Weights differ by rounding, so some gains round to the other side of a whole number of bits."""
    config = make_config("digits5", "blip", changes=[*CHANGES, "method.rules=strict"])
    run(config, tmp_path)
    first = [
        load_file(root / config.name / "bits" / "task1.safetensors") for root in (tmp_path, roots[0] / "disk of rank 0")
    ]
    bits = [torch.cat([value.flatten() for name, value in found.items() if name.endswith("/bits")]) for found in first]
    assert bits[0].float().mean() > 1
    assert (bits[0] != bits[1]).float().mean() < 0.02


def test_ranks_have_the_same_statistics_of_norms_after_an_epoch(roots):
    first, second = (rank["norm"] for rank in roots[1])
    assert first == second
    assert len(set(first)) > 4  # they have been taken


def test_only_one_rank_writes(roots):
    root, found = roots
    assert not (root / "disk of rank 1").exists()
    assert [rank["again"] for rank in found] == [rank["ft"] for rank in found]
    assert not list((root / "disk of rank 0").glob("**/er*/**/config.toml"))


def test_a_method_that_cannot_is_refused(roots):
    assert all("er cannot share a run between ranks: start it without torchrun" in rank["refused"] for rank in roots[1])


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_parts_of_a_batch_have_the_weight_of_their_rows(rows):
    values = torch.rand(rows, dtype=torch.float64)
    parts = [share_of(torch.arange(rows), Ranks(3, index)) for index in range(3)]
    mean = sum(values[mine].mean() * weight for mine, weight in parts) / 3
    torch.testing.assert_close(mean, values.mean())


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the threads in /proc")
def test_no_thread_of_gloo_outlives_the_group(tmp_path):
    """Such a thread aborts the process if it drops a tensor while Python ends."""
    subprocess.run([*TORCHRUN, leaving_rank.__file__, str(tmp_path)], check=True, timeout=TIMEOUT)
    for rank in range(2):
        assert "gloo" in (tmp_path / f"during{rank}").read_text()
        assert "gloo" not in (tmp_path / f"after{rank}").read_text()


def torchrun(root: Path) -> subprocess.Popen:
    command = [*TORCHRUN, "-m", "bitfreeze", "run", "digits5", "--checkpoint-seconds", "0", "--set", *CHANGES]
    environment = {**os.environ, "BITFREEZE_RUNS": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def kill_rank(parent: int, rank: int) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            is_child = int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if is_child and f"\0RANK={rank}\0".encode() in b"\0" + (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                return
    raise AssertionError(f"{parent} has no child with RANK={rank}")


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the rank to kill in /proc")
def test_a_rank_that_dies_ends_the_run_which_is_then_taken_up(roots, tmp_path):
    config = make_config("digits5", "blip", changes=CHANGES)
    place, deadline = tmp_path / config.name, time.monotonic() + TIMEOUT
    process = torchrun(tmp_path)
    try:
        while not (place / "checkpoint" / "000004").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        kill_rank(process.pid, 1)
        output, _ = process.communicate(timeout=TIMEOUT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    assert "SIGKILL" in output or "has lost touch with another" in output
    assert RunFolder(place).result() is None

    process = torchrun(tmp_path)
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    whole = roots[0] / "disk of rank 0" / config.name
    assert (place / "accuracy.csv").read_bytes() == (whole / "accuracy.csv").read_bytes()
    assert output.count("kept in") == 1
