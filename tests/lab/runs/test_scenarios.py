"""Runs that are not told the task: what they write, how they go on, how tables show them."""

import csv
import io

import pytest

from bitfreeze.lab.metrics import average_accuracy
from bitfreeze.lab.results.rows import finished_rows, from_csv, to_csv
from bitfreeze.lab.results.table import grid, summarise
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.start import run
from support.cut_off import Cut, cut_after

SMALL = ["training.epochs=2", "network.hidden=[16]"]
CASES = [
    *((method, "class") for method in ("lwf", "agem", "er", "joint", "blip")),
    ("blip by weight", "class"),
    ("blip", "domain"),
    ("ft", "task"),
]


def small(method, scenario, *changes):
    return make_config("digits5", method.split()[0], changes=[*SMALL, f"stream.scenario={scenario}", *changes])


def rows(folder, name):
    return [getattr(event, name) for event in folder.events() if event.name == "task"]


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_a_run_that_is_cut_off_goes_on_to_the_same_bytes_of_both_accuracies(name, scenario, tmp_path):
    config = small(name, scenario, *(["method.rules=strict"] if "by weight" in name else []))
    result = run(config, tmp_path / "whole")
    for _ in range(20):
        try:
            again = run(config, tmp_path / "parts", [cut_after(3, "epoch")], checkpoint_seconds=0)
            break
        except Cut:
            pass
    whole, parts = (RunFolder(tmp_path / side / config.name) for side in ("whole", "parts"))
    assert (whole.path / "accuracy.csv").read_bytes() == (parts.path / "accuracy.csv").read_bytes()
    for field in ("accuracy", "accuracy_with_task", "accuracy_without_task"):
        assert repr(rows(whole, field)) == repr(rows(parts, field))
    assert (again.acc, again.acc_with_task, again.acc_without_task) == (
        result.acc, result.acc_with_task, result.acc_without_task,
    )  # fmt: skip


def test_the_last_rows_outlive_a_cut_after_the_last_task(tmp_path):
    config = small("ft", "class")
    whole = run(config, tmp_path / "whole")
    with pytest.raises(Cut):
        run(config, tmp_path / "parts", [cut_after(4, "task")], checkpoint_seconds=0)
    with pytest.raises(Cut):
        run(config, tmp_path / "parts", [cut_after(0, "finished")])
    assert run(config, tmp_path / "parts").acc_with_task == whole.acc_with_task


def test_the_headline_is_without_the_task_where_the_head_grows_and_else_with_it(tmp_path):
    found = {}
    for scenario in ("task", "domain", "class"):
        config = small("ft", scenario)
        result = run(config, tmp_path)
        folder = RunFolder(tmp_path / config.name)
        assert result.acc == average_accuracy(folder.read_matrix())
        found[scenario] = rows(folder, "accuracy_with_task")[-1], rows(folder, "accuracy_without_task")[-1], result
    told, untold, result = found["class"]
    assert (result.acc_with_task, result.acc_without_task) == (average_accuracy([told]), None)
    assert untold is None
    assert result.acc < result.acc_with_task - 20
    told, untold, result = found["task"]
    assert (result.acc_with_task, result.acc_without_task) == (None, average_accuracy([untold]))
    assert told is None
    assert result.acc > result.acc_without_task + 20
    assert found["domain"][:2] == (None, None)
    assert (found["domain"][2].acc_with_task, found["domain"][2].acc_without_task) == (None, None)


def test_tables_show_both_where_a_run_has_both(tmp_path):
    results = {scenario: run(small("ft", scenario), tmp_path) for scenario in ("task", "domain", "class")}
    found = finished_rows(tmp_path, "digits5")
    assert from_csv(to_csv(found)) == [{"acc_with_task": None, "acc_without_task": None} | row for row in found]
    titles, _ = grid(summarise(found, "digits5"))
    assert titles[3:8] == ["ACC", "BWT", "learned", "ACC with task", "ACC without task"]
    grown = next(row for row in found if "scenario=class" in row["variant"])
    assert grown["acc_with_task"] == round(results["class"].acc_with_task, 4)
    (alone,) = (row for row in found if "scenario=domain" in row["variant"])
    header = next(csv.reader(io.StringIO(to_csv([alone]))))
    assert not {"acc_with_task", "acc_without_task"} & set(header)
    assert grid(summarise([alone], "digits5"))[0][3:5] == ["ACC", "BWT"]


def test_one_head_for_tasks_of_unlike_size_is_refused_before_anything_is_written():
    with pytest.raises(ValueError, match=r"same number of classes"):
        make_config("alt_cifar", "ft", changes=["stream.scenario=domain"])


def test_pmnist_with_one_head_has_the_protocol_of_gpm():
    config = make_config("pmnist_domain", "blip")
    assert config.network == {"kind": "mlp", "hidden": [100, 100], "init": "uniform", "bias": False}
    assert config.stream_options | {"scenario": "domain", "validation": "holdout", "tasks": 10} == config.stream_options
    assert [config.training[name] for name in ("lr", "batch", "epochs")] == [0.01, 10, 5]
    assert config.training["patience"] >= config.training["epochs"]  # one learning rate throughout
    with pytest.raises(ValueError, match=r"hat must be told the task, which stream\.scenario=domain does not"):
        make_config("pmnist_domain", "hat")
