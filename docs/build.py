"""Builds the site: `python docs/build.py`, or `make docs`. Pages of docs/ and tables of results/ become site/index.html.

Pages are written so that their links work in the repository. Sphinx wants all pages below one folder, so this copies them
to build/site and mends links that lead out of docs/.
"""

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGES = ROOT / "build" / "site"
BESIDE = {"results": (".md", ".csv"), "examples": (".py", ".ipynb")}  # folders beside docs/ that pages link to


def collect() -> None:
    """Copies all that the site is made of to PAGES."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(HERE, PAGES, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for folder, endings in BESIDE.items():
        (PAGES / folder).mkdir()
        for file in (ROOT / folder).iterdir():
            if file.suffix in endings:
                shutil.copy(file, PAGES / folder)
    for page in PAGES.rglob("*.md"):
        page.write_text(mended(page.read_text(), depth=len(page.relative_to(PAGES).parents) - 1))


def mended(page: str, depth: int) -> str:
    """The page with links as they are below PAGES: results/ lies within docs/ there, rather than beside it."""
    folders = "|".join([*BESIDE, "docs"])
    out = re.escape("../" * (depth + 1))
    page = re.sub(rf"\]\({out}({folders})/", rf"]({'../' * depth}\1/", page)
    return re.sub(rf"\]\(({re.escape('../' * depth)})docs/", r"](\1", page)


if __name__ == "__main__":
    collect()
    sys.exit(sphinx(["-W", "--keep-going", "-q", "-c", str(HERE), str(PAGES), str(ROOT / "site"), *sys.argv[1:]]))
