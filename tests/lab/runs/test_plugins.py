"""Files of the user's own."""

import pytest

from bitfreeze.lab.runs.config import make_config
from bitfreeze.lab.runs.plugins import load_plugins
from bitfreeze.lab.streams import streams

PLUGIN = """
from bitfreeze.lab.streams import register_stream
from bitfreeze.lab.streams.pairs import digits5
register_stream("mine", "a stream of one's own", (), digits5, preset={"training": {"epochs": 3}})
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    monkeypatch.setenv("BITFREEZE_PLUGINS", str(file))
    yield file
    streams.pop("mine", None)


def test_what_a_file_registers_is_known_with_its_own_settings_and_defaults_for_the_rest(plugin):
    load_plugins()
    config = make_config("mine", "blip")
    assert config.training["epochs"] == 3
    assert config.network["kind"] == "mlp"
    assert config.name == "mine/blip/seed0"


def test_a_file_runs_once(plugin):
    load_plugins()
    plugin.write_text("raise RuntimeError('a second time')")
    load_plugins()


@pytest.mark.parametrize(("name", "says"), [("gone.py", "is not there"), ("notes.txt", "must end in .py")])
def test_what_is_no_file_of_python_is_refused(name, says, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("text")
    monkeypatch.setenv("BITFREEZE_PLUGINS", str(tmp_path / name))
    with pytest.raises(ValueError, match=says):
        load_plugins()


def test_none_are_needed(monkeypatch):
    monkeypatch.delenv("BITFREEZE_PLUGINS", raising=False)
    before = dict(streams)
    load_plugins()
    assert streams == before
