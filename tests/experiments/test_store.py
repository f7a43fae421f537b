"""The files of a run: what is read of them after accidents."""

import pytest
import torch
from made_runs import make_run

from bitfreeze.experiments.config import make_config
from bitfreeze.experiments.environment import code_version
from bitfreeze.experiments.rows import finished_rows
from bitfreeze.experiments.runner import run
from bitfreeze.experiments.store import RunDamaged, RunFolder
from bitfreeze.experiments.table import summarise

CHANGES = ["training.epochs=1", "network.hidden=[8]"]


def numbers(folder: RunFolder) -> list[int]:
    return [event["n"] for event in folder.events()]


def test_an_event_makes_later_ones_void_that_were_written_before_it(tmp_path):
    """A run that begins again further back may end with fewer events than were there."""
    folder = RunFolder(tmp_path)
    for _ in range(9):
        folder.event("epoch")
    again = RunFolder(tmp_path)
    again.events_written = 4
    again.event("started")
    again.event("finished", acc=50.0)
    assert numbers(folder) == [0, 1, 2, 3, 4, 5]
    assert folder.result() == {"n": 5, "event": "finished", "acc": 50.0}


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.event("started")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"n": 1, "event": "fin')
    folder.event("epoch")
    assert [event["event"] for event in folder.events()] == ["started", "epoch"]


@pytest.mark.parametrize("line", [b"5", b"{}", b"[1]", b"\xff\xfe", b'{"n": "1", "event": "epoch"}', b'{"n": 1}', b""])
def test_a_damaged_line_is_no_event(line, tmp_path):
    folder = RunFolder(tmp_path)
    folder.event("started")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(line + b"\n")
    folder.event("finished")
    assert numbers(folder) == [0, 1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"stream = ", r"config.toml cannot be read"),
        (b"", r"config.toml does not say stream and method and seed and training and environment"),
        (b"\xff", r"config.toml cannot be read"),
    ],
)
def test_settings_that_cannot_be_read_are_named_and_other_runs_are_shown(content, says, tmp_path):
    broken = make_run(tmp_path, "ft").folder
    make_run(tmp_path, "ft", seed=1)
    (broken.path / "config.toml").write_bytes(content)
    with pytest.raises(RunDamaged, match=says):
        broken.read_config()
    with pytest.warns(UserWarning, match=f"{says}.*left out"):
        assert [row["seed"] for row in finished_rows(tmp_path, "digits5")] == [1]


def test_a_run_of_a_method_that_is_not_there_is_named_and_left_out(tmp_path):
    strange = make_run(tmp_path, "ft").folder.path / "config.toml"
    make_run(tmp_path, "ft", seed=1)
    strange.write_text(strange.read_text().replace('method = "ft"', 'method = "mine"'))
    with pytest.warns(UserWarning, match="mine on digits5 is not known here"):
        assert [row["seed"] for row in finished_rows(tmp_path, "digits5")] == [1]


def test_damaged_tensors_are_one_sentence(tmp_path):
    folder = make_run(tmp_path, "blip").folder
    (folder.path / "bits" / "task1.safetensors").write_bytes(b"not one")
    with pytest.raises(RunDamaged, match=r"task1.safetensors cannot be read .*: delete the run"):
        folder.read_tensors("bits", 0)


def test_lost_settings_of_a_finished_run_are_written_again(tmp_path):
    config = make_config("digits5", "ft", changes=CHANGES)
    first = run(config, tmp_path)
    (tmp_path / config.name / "config.toml").unlink()
    assert run(config, tmp_path) == first
    assert finished_rows(tmp_path, "digits5")[0]["command"] == config.command


@pytest.mark.parametrize(
    ("now", "before", "words"),
    [
        (code_version(), "0.0.1 (abc)", r"bitfreeze 0.0.1 \(abc\), now "),
        (torch.backends.cpu.get_cpu_capability(), "Z80", "cpu Z80, now "),
    ],
)
def test_going_on_with_other_code_or_on_another_cpu_is_allowed_and_said(now, before, words, tmp_path):
    config = make_config("digits5", "ft", changes=CHANGES)
    place = make_run(tmp_path, "ft", changes=CHANGES, finished=False).folder.path
    (place / "config.toml").write_text((place / "config.toml").read_text().replace(now, before))
    with pytest.warns(UserWarning, match=f"was begun with {words}"):
        run(config, tmp_path)


def test_the_paper_stands_only_beside_its_own_stream(tmp_path):
    make_run(tmp_path, "blip")
    (row,) = finished_rows(tmp_path, "digits5")
    rows = [{**row, "variant": variant} for variant in ("", "training.epochs=10", "stream.tuning=true")]
    assert [line.paper_acc for line in summarise(rows, "mnist5")] == [99.64, 99.64, None]
