"""The number of threads: what was asked for, and for auto what is free and helps."""

import os

import pytest
import torch

from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.start import start
from bitfreeze.lab.runs.threads import free_cores, number_of
from support.cut_off import Cut, cut_after

SMALL = make_config("digits5", "ft", changes=["training.epochs=2", "network.hidden=[8]"])
LARGE = make_config("alt_cifar", "ft")


@pytest.fixture
def machine(monkeypatch):
    """A machine with these cores and this load."""

    def be(cores: int, load: float, ranks: int = 1) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))

    return be


@pytest.mark.parametrize(
    ("cores", "load", "ranks", "free"),
    [(8, 0.1, 1, 8), (8, 3.0, 1, 5), (8, 20.0, 1, 1), (8, 0.0, 2, 4), (1, 0.0, 4, 1)],
)
def test_free_cores_are_those_that_nothing_uses(machine, cores, load, ranks, free):
    machine(cores, load, ranks)
    assert free_cores() == free


def test_auto_takes_free_cores_for_convolutions_and_one_for_a_perceptron(machine, tmp_path):
    machine(6, 0.0)
    folder = RunFolder(tmp_path)
    assert number_of("auto", LARGE, folder) == 6
    assert number_of("auto", SMALL, folder) == 1
    assert number_of(3, SMALL, folder) == 3


def test_auto_goes_on_with_the_threads_that_a_run_has(machine, tmp_path):
    """Elsewhere a run that is not finished is refused, because other threads give other last bits."""

    def go(threads, **options):
        return start(
            SMALL, tmp_path, options.get("listeners", ()), checkpoint_seconds=0, keep_bits=False, threads=threads,
            device="cpu", get_data=lambda name: None,
        )  # fmt: skip

    with pytest.raises(Cut):
        go(2, listeners=[cut_after(3, "epoch")])
    machine(16, 0.0)
    go("auto")
    assert RunFolder(tmp_path / SMALL.name).read_config()["environment"]["threads"] == 2
    assert torch.get_num_threads() != 2 or os.cpu_count() == 2  # put back


@pytest.mark.parametrize("bad", [0, -1, "many", 1.5])
def test_other_numbers_are_refused(bad, tmp_path):
    with pytest.raises(ValueError, match="threads must be a whole number of at least 1, or auto, got"):
        number_of(bad, SMALL, RunFolder(tmp_path))
