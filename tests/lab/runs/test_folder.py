"""The files of a run: what is read of them after accidents."""

from dataclasses import replace

import pytest
import torch

from bitfreeze.lab.results.rows import finished_rows
from bitfreeze.lab.results.table import summarise
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.errors import RunDamaged, RunRefused
from bitfreeze.lab.runs.events import AccuracyResult, EpochDone, Started
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.runs.provenance import code_version
from bitfreeze.lab.runs.start import run
from support.made_runs import make_run

CHANGES = ["training.epochs=1", "network.hidden=[8]"]


STARTED = Started(tasks=["one"], learned=0)
EPOCH = EpochDone(task=0, epoch=1, lr=0.1, train_loss=1.0, valid_loss=2.0)
RESULT = AccuracyResult(
    acc=50.0, bwt=0.0, bwt_T=0.0, forgetting=0.0, learning_acc=50.0, model_bytes=1, extra_bytes=2, buffer_bytes=3,
    seconds=4.0,
)  # fmt: skip


def numbers(folder: RunFolder) -> list[int]:
    return [event.n for event in folder.events()]


def test_an_event_makes_later_ones_void_that_were_written_before_it(tmp_path):
    """A run that begins again further back may end with fewer events than were there."""
    folder = RunFolder(tmp_path)
    for _ in range(9):
        folder.event(EPOCH)
    again = RunFolder(tmp_path)
    again.log.written = 4
    again.event(STARTED)
    again.event(RESULT)
    assert numbers(folder) == [0, 1, 2, 3, 4, 5]
    assert folder.result() == replace(RESULT, n=5)


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.event(STARTED)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"n": 1, "event": "fin')
    again = RunFolder(tmp_path)
    again.log.written = 1
    again.event(EPOCH)
    assert folder.events() == [STARTED, replace(EPOCH, n=1)]


@pytest.mark.parametrize("line", [b"5", b"{}", b"[1]", b"\xff\xfe", b'{"n": "1", "event": "epoch"}', b'{"n": 1}', b""])
def test_a_damaged_line_is_no_event(line, tmp_path):
    folder = RunFolder(tmp_path)
    folder.event(STARTED)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(line + b"\n")
    folder = RunFolder(tmp_path)
    folder.log.written = 1
    folder.event(RESULT)
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
    with pytest.warns(UserWarning, match="no file in BITFREEZE_PLUGINS registers mine on digits5"):
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
    assert [line.cells()["paper ACC"] for line in summarise(rows, "mnist5")] == ["99.64", "99.64", ""]


def test_a_run_that_noted_an_option_that_is_no_more_goes_on(tmp_path):
    """HAT once had the option bound. An option that is still there must be the same, also where it is none now."""
    config, folder = make_config("digits5", "hat", changes=CHANGES), RunFolder(tmp_path)
    folder.write_config(config)
    file = tmp_path / "config.toml"
    written = file.read_text()
    for noted in ("bound = 6.0", "lost = [1]"):
        file.write_text(written.replace("[method_options]", f"[method_options]\n{noted}"))
        folder.require_same_config(config, finished=False)
    file.write_text(written.replace("lam = 0.75", "lam = 0.5"))
    with pytest.raises(RunRefused, match=r"method_options.lam is 0.5 there and 0.75 here"):
        folder.require_same_config(config, finished=False)
    plain = make_config("digits5", "ft", changes=CHANGES)
    file.unlink()
    folder.write_config(plain)
    file.write_text(file.read_text().replace("[method_options]", "[method_options]\nclip = 5.0"))
    with pytest.raises(RunRefused, match=r"method_options.clip is 5.0 there and None here"):
        folder.require_same_config(plain, finished=False)
