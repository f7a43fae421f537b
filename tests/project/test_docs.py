"""Pages of docs/ are in step with the registry and with results/."""

import importlib
import inspect
import re
import runpy
from types import SimpleNamespace

import pytest

from bitfreeze.lab.methods import methods
from support.checkout import ROOT
from support.imports import modules_of

DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "methods").glob("*.md"))
FILLED = [*PAGES, DOCS / "how-to" / "choosing.md"]
fill = runpy.run_path(str(DOCS / "fill_results.py"))


@pytest.mark.parametrize("page", FILLED, ids=lambda page: page.stem)
def test_figures_are_those_of_results(page):
    text = page.read_text()
    assert fill["filled"](text) == text, "run python docs/fill_results.py"


def test_a_block_is_filled_from_the_rows_of_its_method():
    page = "before\n<!-- results:blip -->\nold\n<!-- end -->\nafter\n"
    filled = fill["filled"](page)
    assert filled.startswith("before\n<!-- results:blip -->\n")
    assert filled.endswith("<!-- end -->\nafter\n")
    assert "old" not in filled
    assert "| blip | released | " in filled
    assert "| 99.64 | 0.01 |" in filled  # the paper's


def test_the_table_of_methods_has_a_row_for_each_of_the_registry():
    rows = re.findall(r"^\| \[`(\w+)`\]\((.*?)\) \|", fill["all_methods"](), re.MULTILINE)
    assert [name for name, _ in rows] == list(methods)
    assert all(re.search(rf"`{name}`|--method {name}\b", (DOCS / "how-to" / page).read_text()) for name, page in rows)


def test_the_table_of_methods_has_the_line_that_is_nearest_to_what_most_share():
    rows = [("a", "x", 1.0), ("b", "x", 2.0), ("c", "x y", 3.0), ("c", "x y z", 4.0)]
    lines = [
        SimpleNamespace(
            method=name, variant=variant, rows=[0], figures=lambda acc=acc: {"acc": {"mean": acc}, "bwt": {"mean": -1}}
        )
        for name, variant, acc in rows
    ]
    assert fill["_comparable"](lines) == {"a": "1.0 / -1.0 (1)", "b": "2.0 / -1.0 (1)", "c": "3.0 / -1.0 (1) *"}


@pytest.mark.parametrize("method", methods)
def test_every_method_has_a_page_that_names_its_command(method):
    pages = "\n".join(page.read_text() for page in PAGES)
    assert re.search(rf"--method {method}\b|`{method}`", pages)


REFERENCE = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
MODULES = modules_of(ROOT / "src" / "bitfreeze")


@pytest.mark.parametrize("name", re.findall(r"^\.\. auto\w+:: (.*)", REFERENCE, re.MULTILINE))
def test_the_reference_shows_what_exists(name):
    """A module is found by its file, because those of integrations/ need a library of their own."""
    if name not in MODULES:
        place, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(place), last)


@pytest.mark.parametrize("place", ["bitfreeze", "bitfreeze.fisher", "bitfreeze.likelihoods", "bitfreeze.lab"])
def test_the_reference_shows_every_public_name(place):
    shown = re.findall(r"^\.\. auto\w+:: (.*)", REFERENCE, re.MULTILINE)
    alone = [name.rpartition(".") for name in shown if name not in MODULES]
    values = [getattr(importlib.import_module(home), name) for home, _, name in alone]
    module = importlib.import_module(place)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            assert f"{place}.{name}" in REFERENCE, name
        else:
            assert {place, value.__module__} & {*shown} or any(value is other for other in values), name
