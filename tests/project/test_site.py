"""The built site: it has all pages, works from disk, and passes a checker of accessibility in a browser."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import AXE, CHROMIUM, Browser
from support.checkout import ROOT

pytest.importorskip("sphinx", reason="the site needs the extra 'docs'")
pytestmark = pytest.mark.filterwarnings("default")  # those of Sphinx and its extensions
LOOKED_AT = (
    "index.html", "tutorials/own_loop.html", "how-to/choosing.html", "methods/ewc.html", "methods/directions.html",
    "explanation/house.html", "reference/library.html", "reference/laboratory.html", "results/mnist5.html",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = runpy.run_path(str(ROOT / "docs" / "build.py"))["build"]
    assert build(folder / "pages", folder / "site") == 0
    return folder / "site"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None or AXE is None:
        pytest.skip("there is no chromium, or no axe-core: make test-browser")
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def test_every_page_and_every_table_is_there(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    pages += [page.relative_to(ROOT) for page in (ROOT / "results").glob("*.md")]
    assert [str(page) for page in pages if not (site / page.with_suffix(".html")).exists()] == []


def test_the_reference_shows_signatures_and_examples(site: Path) -> None:
    page = (site / "reference" / "library.html").read_text()
    assert 'id="bitfreeze.BLIP.consolidate"' in page
    assert "highlight-python" in page
    assert "```" not in page


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("page", LOOKED_AT)
def test_a_page_is_accessible_and_fits_its_screen(page: str, width: int, site: Path, browser: Browser) -> None:
    browser.complaints.clear()
    browser.open((site / page).as_uri(), width=width)
    assert browser.value("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
    assert browser.complaints == []
    assert browser.faults() == []


def test_search_finds_a_name_from_disk(site: Path, browser: Browser) -> None:
    browser.open(f"{(site / 'search.html').as_uri()}?q=consolidate")
    browser.wait_for("document.querySelectorAll('#search-results li').length > 0")
