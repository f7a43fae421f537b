"""Pages of docs/ are in step with the registry and with results/."""

import importlib
import re
import runpy

import pytest

from bitfreeze.lab.methods import methods
from support.checkout import ROOT
from support.imports import modules_of

DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "methods").glob("*.md"))
fill = runpy.run_path(str(DOCS / "fill_results.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
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


@pytest.mark.parametrize("page", [*DOCS.rglob("*.md"), DOCS.parent / "README.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link, _, anchor in re.findall(r"\]\(([\w./-]+)(#([\w-]+))?\)", page.read_text()):
        assert (page.parent / link).exists(), link
        headings = re.findall(r"^#+ (.*)", (page.parent / link).read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]
