"""The commands as a user types them."""

import csv
import io
import os
import re
import subprocess
import sys

import pytest
import torch

from bitfreeze.lab import data, rl, training
from bitfreeze.lab.cli.main import main
from bitfreeze.lab.methods import methods
from bitfreeze.lab.nets import networks
from bitfreeze.lab.options import options_of
from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.streams import make_stream, streams

SMALL = ["--set", "training.epochs=2", "network.hidden=[16]"]


def test_a_run_ends_with_its_row_and_where_it_is_kept(type_in, tmp_path):
    out = type_in("run", "digits5", "--method", "ft", *SMALL)
    assert "| method | variant | seeds | ACC | BWT |" in out
    assert out.count("| ft |") == 1
    assert f"kept in {tmp_path / 'digits5'}" in out
    again = type_in("run", "digits5", "--method", "ft", *SMALL)
    assert again.splitlines()[-2] == out.splitlines()[-2]  # the same row: nothing was done again
    assert again.splitlines()[-1] == f"finished before; {out.splitlines()[-1]}"


def test_table_and_show_tell_of_what_was_run(type_in, tmp_path):
    for method in ("ft", "blip"):
        type_in("run", "digits5", "--method", method, *SMALL)
    out = type_in("table", "digits5")
    assert out.count("| ft |") == out.count("| blip |") == 1
    rows = type_in("table", "digits5", "--csv").splitlines()
    assert len(rows) == 3
    assert rows[0].startswith("method,variant,seed,acc,bwt,bwt_T,")
    (run,) = (tmp_path / "digits5").glob("blip*/seed0")
    shown = type_in("show", str(run.relative_to(tmp_path)))
    assert 'rules = "directions"' in shown
    assert "after task 5: " in shown
    assert "bits_per_parameter" in shown
    row = next(row for row in csv.DictReader(io.StringIO("\n".join(rows))) if row["method"] == "blip")
    assert shown.splitlines()[-1] == f"ACC {float(row['acc']):.2f}, BWT {float(row['bwt']):z.2f}"


def test_runs_can_be_left_out_of_a_table(type_in):
    type_in("run", "digits5", "--method", "ft", *SMALL)
    type_in("run", "digits5", "--method", "ft", *SMALL[:2])
    assert type_in("table", "digits5").count("| ft |") == 2
    assert type_in("table", "digits5", "--only", "network.hidden=[16]").count("| ft |") == 1
    assert "hidden" not in type_in("table", "digits5", "--without", "network.hidden=[16]")
    with pytest.raises(SystemExit, match="no such finished run of digits5"):
        type_in("table", "digits5", "--only", "nothing")


def test_data_alone_lists_the_datasets(type_in):
    assert type_in("data") == type_in("data", "list")
    assert "mnist " in type_in("data")


@pytest.mark.parametrize("command", ["run", "sweep", "table", "show", "play", "figure", "report", "watch", "list"])
def test_help_is_for_people(command, type_in, capsys):
    with pytest.raises(SystemExit):
        type_in(command, "--help")
    text = capsys.readouterr().out
    assert "usage: bitfreeze" in text
    assert not re.search(r"\{None\}|None|\[STR|default: \)|default: ''", text)


def test_the_list_names_everything(type_in):
    out = type_in("list")
    assert all(f"  {name} " in out for name in [*streams, *methods, "mlp"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "digit5"], "bitfreeze: there is no stream 'digit5': did you mean digits5"),
        (
            ["run", "digits5", "--method", "blip", "--set", "method.budget=7"],
            "bitfreeze: budget must be a share of the bits, above 0 and below 1, got 7",
        ),
        (["run", "digits5", "--set", "training.epochs=1", "--set", "training.lr=1"], "after one --set"),
        (["run", "digits5", "--set=training.epochs=1", "--set", "training.batch=16"], "after one --set"),
        (["run", "digits5", "--method", "ft", "--method=blip"], "--method is given more than once"),
        (["run", "control", "--envs", "CartPole-v1", "--envs", "Acrobot-v1"], "after one --envs"),
        (["sweep", "digits5", "--methods", "ft", "--methods", "blip"], "after one --methods"),
        (["sweep", "digits5", "--engine-options", "a=1", "--engine_options", "b=2"], "after one --engine-options"),
        (["run", "digits5", "--threads", "0"], "threads must be a whole number of at least 1, or auto, got 0"),
        (
            ["run", "digits5", "--method", "ft", "--set", "method.clip=-1"],
            "method.clip must be greater than 0, or none",
        ),
        (
            ["run", "digits5", "--method", "ft", "--set", "network.hidden=[-1]"],
            "hidden must be a list of widths",
        ),
        (["run", "digits5", "--set", "method.labels=foo"], "method.labels must be sample, exact or true, got 'foo'"),
        (["run", "digits5", "--set", "method.fisher_batch=0"], "method.fisher_batch must be at least 1, got 0"),
        (
            ["run", "digits5", "--method", "ucb", "--set", "method.mean_noise=-1"],
            "method.mean_noise must be at least 0",
        ),
        (["run", "digits5", "--method", "acl", "--set", "method.latent=0"], "method.latent must be at least 1, got 0"),
        (
            ["run", "digits5", "--method", "vcl", "--set", "method.pretrain_epochs=-1"],
            "method.pretrain_epochs must be at least 0, got -1",
        ),
        (
            ["run", "digits5", "--method", "er", "--set", "method.buffer=0"],
            "method.buffer must be at least 5, a sample",
        ),
        (["sweep", "digits5", "--seeds", "4-0"], "the smaller first"),
        (["list", "blib"], "there is no stream, method or network 'blib': did you mean blip"),
        (["table", "digit5"], "there is no stream 'digit5': did you mean digits5"),
        (["figure", "matrx"], "there is no figure 'matrx': did you mean matrix"),
        (["table", "digits5"], "no such finished run of digits5"),
        (["table", "digits5", "--csv", "--latex"], "a table has one form, got --csv and --latex; name one"),
        (["show", "nothing"], "there is no run 'nothing'"),
        (["sweep", "digits5", "--seeds", "x"], "bitfreeze: seeds are written 0-4"),
        (["data", "get", "mnits"], "bitfreeze: .*mnist"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence_and_nothing_is_kept(words, sentence, type_in, tmp_path):
    with pytest.raises(SystemExit, match=sentence):
        type_in(*words)
    assert not list(tmp_path.rglob("config.toml"))


def test_what_can_be_set_is_listed(type_in):
    assert "--set method.strongest=256  (directions of each side" in type_in("list", "blip")
    assert "--set method.strength=250.0  (lambda" in type_in("list", "ewc")  # the method's own, of no preset
    shown = type_in("list", "mnist5")
    assert "--set training.epochs=200  (the most epochs" in shown
    assert "--method blip --variant released method.rules=released method.prior=1e-11" in shown
    assert "--method vcl method.sampling=local training.lr=0.001" in shown


@pytest.mark.parametrize("stream", [name for name, record in streams.items() if record.trainer == "supervised"])
def test_what_is_listed_of_a_stream_can_be_typed_in(stream, type_in):
    for line in type_in("list", stream).splitlines():
        words = line.partition("  (")[0].split()
        if words[0] == "--set":
            make_config(stream, "ft", changes=words[1:])
        else:
            method, variant, given = words[1], "", words[2:]
            if given[:1] == ["--variant"]:
                variant, given = given[1], given[2:]
            make_config(stream, method, variant, changes=given)


@pytest.mark.parametrize("method", methods)
def test_what_is_listed_of_a_method_can_be_typed_in(method, type_in):
    for line in type_in("list", method).splitlines():
        make_config("digits5", method, changes=[line.removeprefix("--set ").partition("  (")[0]])


def test_every_option_says_what_it_means():
    made = [*(stream.make for stream in streams.values()), make_stream, *(net.build for net in networks.values())]
    for target in (*made, *methods.values(), training.Settings, rl.Settings):
        assert all(option.meaning for option in options_of(target).values()), target


def test_a_finished_run_is_shown_whatever_the_threads(type_in):
    first = type_in("run", "digits5", "--method", "ft", *SMALL)
    again = type_in("run", "digits5", "--method", "ft", *SMALL, "--threads", "2")
    assert again.splitlines()[-2] == first.splitlines()[-2]
    torch.set_num_threads(1)


def test_getting_data_shows_how_it_goes(type_in, tmp_path, monkeypatch, capsys):
    def get(name, progress):
        progress(data.Step(f"{name} from somewhere", 1_000_000, 2_000_000))
        return data.Got(name, tmp_path, {"a": "somewhere"})

    monkeypatch.setattr(data, "get", get)
    monkeypatch.setattr(sys, "argv", ["bitfreeze", "data", "get", "mnist"])
    main()
    out, err = capsys.readouterr()
    assert err == "mnist from somewhere: 1.0 of 2.0 MB\n"
    assert out.startswith("a: somewhere")


COMMAND = "bitfreeze run digits5 --method ft --seed 0"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("plugins.load_plugins", "stopped"),
        ("start.get_missing_data", f"stopped; to continue: {COMMAND}"),
        ("start.run", f"stopped; nothing was saved yet; to continue: {COMMAND}"),
    ],
)
def test_ctrl_c_is_a_line_and_its_own_exit_code(part, said, type_in, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"bitfreeze.lab.runs.{part}", interrupt)
    with pytest.raises(SystemExit) as ended:
        type_in("run", "digits5", "--method", "ft")
    assert ended.value.code == 130
    assert capsys.readouterr().err == f"\n{said}\n"


def test_only_a_run_that_could_not_write_says_that_the_rest_is_kept(type_in, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "events.jsonl")

    monkeypatch.setattr("bitfreeze.lab.runs.start.run", full)
    monkeypatch.setattr("bitfreeze.lab.results.server.report_server", full)
    with pytest.raises(SystemExit, match=r"bitfreeze: .*No space left.*; what was there before has been kept$"):
        type_in("run", "digits5", "--method", "ft")
    with pytest.raises(SystemExit, match=r"bitfreeze: .*No space left on device: 'events.jsonl'$"):
        type_in("watch")


def test_a_sweep_runs_once_what_its_grid_names_twice(type_in, tmp_path):
    out = type_in("sweep", "digits5", "--methods", "ft,ft", "--grid", "training.batch=16,16", *SMALL)
    assert len(list(tmp_path.rglob("config.toml"))) == out.count(": done") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--engine", "loca"], "did you mean local"), (["--address", "auto"], "the local engine has no address")],
)
def test_an_engine_that_cannot_be_is_refused_before_data_are_fetched(words, sentence, type_in, monkeypatch, tmp_path):
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path / "no data"))
    monkeypatch.setattr(data, "get", lambda name, progress: pytest.fail("data were fetched"))
    with pytest.raises(SystemExit, match=sentence):
        type_in("sweep", "mnist5", *words)


def test_output_that_nobody_reads_on_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "bitfreeze", "list"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
