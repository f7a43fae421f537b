"""Finding runs on disk, and reading their frozen bits."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bitfreeze.lab.results.rows import finished_rows
from bitfreeze.lab.results.server import report_server
from bitfreeze.lab.results.stored import find_runs
from support.made_runs import SHAPES, make_run


def test_runs_are_found_below_any_place_and_chosen_by_words(tmp_path):
    make_run(tmp_path, "ft")
    make_run(tmp_path, "ft", seed=1)
    make_run(tmp_path, "blip", changes=["training.epochs=4"])
    assert [run.title for run in find_runs(tmp_path, [])] == [
        "digits5 blip training.epochs=4 seed 0",
        "digits5 ft seed 0",
        "digits5 ft seed 1",
    ]
    assert len(find_runs(tmp_path, ["digits5/ft"])) == 2
    assert len(find_runs(tmp_path, ["digits5/ft/seed1", str(tmp_path / "digits5" / "ft")])) == 2  # each once
    assert len(find_runs(tmp_path, [], only="training.epochs=4")) == 1
    assert len(find_runs(tmp_path, [], only="preset")) == 2
    assert len(find_runs(tmp_path, [], without="training.epochs=4")) == 2
    with pytest.raises(ValueError, match="there is no run in 'mnist5'"):
        find_runs(tmp_path, ["mnist5"])
    with pytest.raises(ValueError, match=r"there is no run in .* to look at"):
        find_runs(tmp_path, [], only="nothing")


def test_a_run_that_cannot_be_read_is_named_and_left_out(tmp_path):
    broken = make_run(tmp_path, "ft").folder.path / "config.toml"
    make_run(tmp_path, "ft", seed=1)
    broken.write_text("stream = ")
    with pytest.warns(UserWarning, match="seed0.*cannot be read.*left out"):
        assert len(find_runs(tmp_path, [])) == 1
    broken.write_text('stream = "digits5"')
    with pytest.warns(UserWarning, match="does not say method and seed and training"):
        assert len(find_runs(tmp_path, [])) == 1


def test_bits_are_what_the_files_hold(tmp_path):
    run = make_run(tmp_path, "blip")
    bits = run.bits
    assert bits.names == ["backbone.1.weight", "backbone.1.bias", "backbone.10.weight"]  # in the order of the network
    assert bits.weights == ["backbone.1.weight", "backbone.10.weight"]
    assert {name: bits.shape(name) for name in bits.names} == SHAPES
    first, second = (load_file(run.folder.path / "bits" / f"task{t}.safetensors") for t in (1, 2))
    for name in bits.names:
        assert np.array_equal(bits.extra(name, 0), first[f"{name}/bits"])
        assert np.array_equal(bits.extra(name, 1), second[f"{name}/bits"] - first[f"{name}/bits"])
        assert np.allclose(bits.centre(name, 1), second[f"{name}/centre"] / 2**20)
        assert np.array_equal(bits.radius(name, 1), 2.0 ** -second[f"{name}/bits"].astype(float))
    frozen = sum(int(second[f"{name}/bits"].astype(int).sum()) for name in bits.names)
    assert bits.capacity(bits.names, 1) == frozen / (20 * sum(int(np.prod(s)) for s in SHAPES.values()))
    assert bits.layers == {"backbone.1": bits.names[:2], "backbone.10": bits.names[2:]}


def test_dead_units_are_those_of_which_no_task_told_anything(tmp_path):
    bits = make_run(tmp_path, "blip").bits
    assert [dead.tolist() for dead in bits.dead_units("backbone.1.weight")] == 2 * [[False, False, True, *3 * [False]]]
    assert not any(dead.any() for dead in bits.dead_units("backbone.10.weight"))
    with_eq8 = make_run(tmp_path, "blip", variant="strict", changes=["method.gain=eq8"]).bits
    assert not next(with_eq8.dead_units("backbone.1.weight")).any()  # there nothing is a gain of 0


def test_a_damaged_file_is_one_sentence(tmp_path):
    run = make_run(tmp_path, "blip")
    bits = run.bits
    (run.folder.path / "bits" / "task2.safetensors").write_bytes(b"not one")
    with pytest.raises(ValueError, match=r"task2.safetensors cannot be read .*: delete the run and do it again"):
        bits.bits("backbone.1.bias", 1)
    with pytest.raises(ValueError, match=r"task1.safetensors cannot be read .*nothing"):
        bits.bits("nothing", 0)
    (again,) = find_runs(tmp_path, [])
    with pytest.warns(UserWarning, match=r"task2.safetensors cannot be read .*its bits are left out"):
        assert again.bits is None  # and all else of the run can be looked at


def test_a_run_without_bits_has_none(tmp_path):
    assert make_run(tmp_path, "ft").bits is None


def odd_seed(place):
    config = place / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", 'seed = "zero"', 1))


def events_in_a_folder(place):
    (place / "events.jsonl").unlink()
    (place / "events.jsonl").mkdir()


def no_number(place):
    """As a run of an earlier version has it, whose lines are not linked."""
    lines = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    for line in lines:
        del line["link"]
        if line["event"] == "task":
            line["accuracy"] = [float("nan")] * len(line["accuracy"])
    (place / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def a_bad_line(place):
    data = (place / "events.jsonl").read_bytes()
    (place / "events.jsonl").write_bytes(data[:200] + b"x" + data[201:])


def other_accuracies(place):
    file = place / "accuracy.csv"
    file.write_text(file.read_text().replace("90.0", "99.0"))


@pytest.mark.parametrize("damage", [odd_seed, events_in_a_folder, no_number, a_bad_line, other_accuracies])
def test_one_odd_run_is_named_and_the_others_are_shown(damage, tmp_path):
    odd = make_run(tmp_path, "ft").folder.path
    make_run(tmp_path, "ft", seed=1)
    damage(odd)
    with pytest.warns(UserWarning, match="seed0.*left out"):
        assert [row["seed"] for row in finished_rows(tmp_path, "digits5")] == [1]
    with pytest.warns(UserWarning, match="seed0.*left out"):
        assert [run.config["seed"] for run in find_runs(tmp_path, [])] == [1]
    with report_server(tmp_path, []) as server:
        told = json.loads(server.live())
        assert b"seed 1" in server.current_page()
    assert len(told["left_out"]) == 1
    assert "seed0" in told["left_out"][0]
