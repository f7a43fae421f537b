"""The laboratory in Python does what the commands do, with the same files and figures."""

import inspect
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest
import torch
import tyro

from bitfreeze import lab
from bitfreeze.lab.cli.main import Command
from bitfreeze.lab.runs.events import AccuracyResult
from bitfreeze.lab.runs.folder import RunFolder
from bitfreeze.lab.sweeps.sweep import Display

SMALL = ["training.epochs=2", "network.hidden=[16]"]
TYPED = ["--set", *SMALL]

# what answers each command: a public function, or one of lab.data
ANSWERS = {
    "run": "run", "sweep": "sweep", "table": "table", "show": "read_run", "play": "play", "figure": "figure",
    "report": "report", "watch": "serve", "list": "describe", "data": "data",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A folder with two finished runs, of ft and blip."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("ft", "blip"):
        lab.run("digits5", method, changes=SMALL, root=folder)
    return folder


def test_every_command_has_its_function():
    commands = [get_args(one)[1].name for one in get_args(Command)]
    assert sorted(commands) == sorted(ANSWERS)
    assert set(ANSWERS.values()) | {"registries", "make_config", "metrics"} == set(lab.__all__)
    assert all(hasattr(lab.data, name) for name in ("status", "get", "verify", "where"))


# other spellings of changes, and forms of the table
SHORT = {"steps", "net", "envs", "set", "csv", "json", "latex", "page"}


@pytest.mark.parametrize("command", ["run", "sweep", "table", "play", "figure", "report", "watch"])
def test_a_function_has_the_options_of_its_command_with_the_same_defaults(command):
    words = {"run": ["s"], "sweep": ["s"], "table": ["s"], "play": ["r", "--task", "1", "--after", "1"]}
    options = vars(tyro.cli(Command, args=[command, *words.get(command, [])]))
    parameters = inspect.signature(getattr(lab, ANSWERS[command])).parameters
    missing = {name for name in options if name not in parameters} - SHORT
    assert missing <= {"run"}  # the place of a run
    differing = {"workers", "methods", "seeds", "engine_options", "out"}  # typed as text, or made on the spot
    shared = options.keys() & parameters.keys() - differing
    assert len(shared) > 2
    for name in shared:
        default = parameters[name].default
        typed = tuple(options[name]) if isinstance(options[name], list) else options[name]
        assert default in (inspect.Parameter.empty, typed), name


def test_a_run_in_python_and_the_command_write_the_same(root, type_in, tmp_path):
    type_in("run", "digits5", *TYPED)
    config = lab.make_config("digits5", changes=SMALL)
    for name in ("accuracy.csv", "config.toml"):
        assert (root / config.name / name).read_bytes() == (tmp_path / config.name / name).read_bytes()


def test_a_config_is_run_as_it_is(root):
    config = lab.make_config("digits5", "ft", changes=SMALL)
    again = lab.run(config, root=root)
    assert isinstance(again, AccuracyResult)
    assert again.to_json() == RunFolder(root / config.name).result().to_json()
    with pytest.raises(ValueError, match="got both"):
        lab.run(config, seed=1, root=root)
    with pytest.raises(ValueError, match="got both"):
        lab.run(config, changes=["training.epochs=1"], root=root)


def test_threads_are_put_back_after_a_run(tmp_path):
    seen = set()

    def look(event):
        seen.add(torch.get_num_threads())

    lab.run("digits5", "ft", changes=SMALL, threads=2, root=tmp_path, listeners=[look])
    assert seen == {2}
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"threads": 0}, "threads must be a whole number of at least 1, or auto, got 0"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds must"),
    ],
)
def test_a_run_that_cannot_be_is_refused(given, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        lab.run("digits5", root=tmp_path, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("start", [lab.run, lab.sweep])
def test_data_that_are_missing_are_got_first(start, tmp_path, monkeypatch):
    monkeypatch.setenv("BITFREEZE_DATA", str(tmp_path / "data"))

    class Asked(Exception):
        pass

    def ask(name):
        raise Asked(name)

    with pytest.raises(Asked, match="mnist"):
        start("mnist5", get_data=ask, root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_stopped_run_says_what_is_kept(tmp_path):
    def stop(event):
        if event.name == "task":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        lab.run("digits5", "ft", changes=SMALL, root=tmp_path, listeners=[stop])
    assert stopped.value.__notes__ == ["kept up to the last checkpoint, 0 s ago"]
    assert lab.run("digits5", "ft", changes=SMALL, root=tmp_path).acc > 50


def test_a_run_that_cannot_be_written_keeps_the_kind_of_its_error(tmp_path):
    def full(event):
        raise PermissionError(13, "no")

    with pytest.raises(PermissionError) as refused:
        lab.run("digits5", "ft", changes=SMALL, root=tmp_path, listeners=[full])
    assert refused.value.__notes__ == ["what was there before has been kept"]


class Noted(Display):
    def __init__(self):
        self.calls = []

    def begin(self, configs):
        self.calls += [config.title for config in configs]

    def done(self, outcome):
        self.calls.append((outcome.config.title, outcome.error))


def test_a_sweep_in_python_is_the_runs_themselves(root, tmp_path):
    noted = Noted()
    given = {"changes": SMALL, "grid": ["training.lr=1x,1e20"], "workers": 2, "display": noted, "root": tmp_path}
    outcomes = lab.sweep("digits5", "ft", **given)
    titles = [outcome.config.title for outcome in outcomes]
    assert noted.calls[:2] == sorted(titles, key=len)
    assert noted.calls[2:] == [(outcome.config.title, outcome.error) for outcome in outcomes]
    (good,), (bad,) = ([o for o in outcomes if bool(o.error) is failed] for failed in (False, True))
    assert "the loss must be finite, got nan" in bad.error
    swept, alone = (lab.read_run(good.config.name, root=place) for place in (tmp_path, root))
    assert swept.matrix == alone.matrix
    (row,) = lab.table("digits5", configs=[good.config, bad.config], root=tmp_path).rows
    assert row["command"] == good.config.command


def test_a_table_is_what_the_command_prints(root, type_in, monkeypatch):
    monkeypatch.setenv("BITFREEZE_RUNS", str(root))
    found = lab.table("digits5")
    assert str(found) == type_in("table", "digits5")
    assert found.to_csv() == type_in("table", "digits5", "--csv")
    assert found.to_page() + "\n" == type_in("table", "digits5", "--page")
    assert found.to_json() + "\n" == type_in("table", "digits5", "--json")
    assert found.to_latex() + "\n" == type_in("table", "digits5", "--latex")
    assert [line.method for line in found.lines] == ["blip", "ft"]
    assert str(lab.table("digits5", "ft")) == type_in("table", "digits5", "--against", "ft")
    ft = lab.make_config("digits5", "ft", changes=SMALL)
    assert [row["method"] for row in lab.table("digits5", configs=[ft], root=root).rows] == ["ft"]
    with pytest.raises(ValueError, match="no such finished run"):
        lab.table("digits5", without="training.epochs=2")


def test_a_stored_run_has_its_matrix_and_its_metrics(root):
    name = lab.make_config("digits5", "ft", changes=SMALL).name
    found = lab.read_run(name, root=root)
    assert lab.read_run(root / name).matrix == found.matrix
    assert found.result.acc == lab.metrics.average_accuracy(found.matrix)
    with pytest.raises(ValueError, match=r"there is no run 'digits5/none', neither as a folder"):
        lab.read_run("digits5/none", root=root)


def test_figures_and_the_report_are_those_of_the_commands(root, type_in, monkeypatch, tmp_path):
    monkeypatch.setenv("BITFREEZE_RUNS", str(root))
    name = lab.make_config("digits5", "ft", changes=SMALL).name
    drawn = lab.figure("matrix", name, out=tmp_path / "python")
    typed = type_in("figure", "matrix", name, "--out", str(tmp_path / "typed"))
    assert typed.splitlines()[0] == drawn.words
    for file in drawn.files:
        assert file.read_bytes() == (tmp_path / "typed" / file.name).read_bytes()
    assert lab.figure("matrix", [name]).files == ()
    with pytest.raises(ValueError, match="workflow takes it"):
        lab.figure("matrix", name, parameter="backbone.1.weight[0,0]")
    page = lab.report("digits5", tmp_path / "deep" / "page.html")
    said = type_in("report", "digits5", "--out", str(tmp_path / "typed.html"))
    assert page.read_bytes() == (tmp_path / "typed.html").read_bytes()
    assert said == f"{tmp_path / 'typed.html'} ({page.stat().st_size / 1e6:.1f} MB): open it in a browser\n"


def test_the_report_is_served(root):
    with lab.serve("digits5", port=0, root=root) as server:
        assert server.address.startswith("http://127.0.0.1:")
        assert {run.method for run in server.runs()} == {"ft", "blip"}


def test_only_a_run_of_games_is_played(root):
    with pytest.raises(ValueError, match="is no run of games"):
        lab.play(lab.make_config("digits5", "ft", changes=SMALL).name, task=1, after=1, root=root)


def test_everything_that_is_listed_is_known(type_in):
    known = lab.registries()
    listed = type_in("list")
    for kind in ("streams", "methods", "networks"):
        assert all(f"\n  {name} " in listed for name in known[kind])
    presets = {file.name.removesuffix(".toml") for file in (files("bitfreeze.lab.runs") / "presets").iterdir()}
    assert presets <= set(known["streams"])
    assert {"local", "ray", "slurm"} == set(known["engines"])
    assert set(known["datasets"]) == {entry.name for entry in lab.data.status()}
    assert {line.split()[0] for line in type_in("figure").splitlines()} == set(known["figures"])


def test_what_is_described_can_be_set():
    found = lab.describe("mnist5")
    changes = {setting.path: setting.change for setting in found.settings}
    assert changes["training.epochs"] == "training.epochs=200"
    released = next(one for one in found.presets if (one.method, one.variant) == ("blip", "released"))
    typed = lab.make_config("mnist5", "blip", changes=released.changes)
    assert typed.parts == lab.make_config("mnist5", "blip", "released").parts
    with pytest.raises(ValueError, match="did you mean blip"):
        lab.describe("blib")


ALONE = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import bitfreeze
assert "bitfreeze.lab" not in sys.modules
from bitfreeze import lab
heavy = [name for name in sys.modules if name.startswith(("bitfreeze.lab.runs", "bitfreeze.lab.methods"))]
assert not heavy, heavy
assert lab.make_config("digits5", "ft").seed == 0
lab.registries(), lab.describe("blip")
try:
    lab.run("digits5", root=sys.argv[1])
except ValueError as error:
    print(error)
"""


def test_the_laboratory_needs_torch_and_numpy_alone_until_an_extra_is_used(tmp_path):
    absent = {"tyro", "rich", "matplotlib", "safetensors", "PIL", "scipy", "pooch", "filelock", "tensorboard",
              "gymnasium", "ale_py", "ray", "submitit"}  # fmt: skip
    command = [sys.executable, "-c", ALONE.format(absent=absent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "this needs filelock, which is not installed: " in done.stdout


HELP = """
import sys
from bitfreeze.lab.cli.main import main
sys.argv = ["bitfreeze", "--help"]
try:
    main()
except SystemExit:
    print([name for name in sys.modules if name.startswith("bitfreeze.lab.runs")])
"""


def test_help_does_not_import_what_carries_out_commands():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"
