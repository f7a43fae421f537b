"""Builds the site, in site/index.html, from the pages of docs/ and the tables of results/: `make docs`.

Links of pages work in the repository. Sphinx wants all pages below one folder, so this copies them to build/site and
mends links that lead out of docs/.
"""

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).parent
ROOT = HERE.parent
BESIDE = {"results": (".md", ".csv"), "examples": (".py", ".ipynb")}  # folders beside docs/ that pages link to


def collect(pages: Path) -> None:
    """Copies all that the site is made of into a folder."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(HERE, pages, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for folder, endings in BESIDE.items():
        (pages / folder).mkdir()
        for file in (ROOT / folder).iterdir():
            if file.suffix in endings:
                shutil.copy(file, pages / folder)
    for page in pages.rglob("*.md"):
        page.write_text(mended(page.read_text(), depth=len(page.relative_to(pages).parents) - 1))


def mended(page: str, depth: int) -> str:
    """The page with links as they are in the folder: results/ lies within docs/ there, rather than beside it."""
    within, beside = "../" * depth, "../" * (depth + 1)
    page = re.sub(rf"\]\({re.escape(beside)}({'|'.join(BESIDE)})/", rf"]({within}\1/", page)
    return page.replace(f"]({within}docs/", f"]({within}")


def build(pages: Path, site: Path) -> int:
    """Builds the site; 0 if nothing was wrong. A warning is an error."""
    collect(pages)
    return sphinx(["-W", "--keep-going", "-q", "-c", str(HERE), str(pages), str(site)])


if __name__ == "__main__":
    sys.exit(build(ROOT / "build" / "site", ROOT / "site"))
