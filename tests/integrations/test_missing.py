"""Without the library, importing its plug-in says in one sentence what to install."""

import importlib
import sys

import pytest

EXTRAS = {
    "avalanche": "avalanche",
    "lightning": "lightning",
    "transformers": "transformers",
    "peft": "peft",
    "stable_baselines3": "sb3",
}


@pytest.mark.parametrize(("library", "extra"), EXTRAS.items())
def test_a_missing_library_names_the_extra(library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"bitfreeze.integrations.{library}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"{library} needs the extra '{extra}': pip install -e '.\[{extra}\]'"
    ):
        importlib.import_module(f"bitfreeze.integrations.{library}")
