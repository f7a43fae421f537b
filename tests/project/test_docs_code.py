"""Code and commands on the pages of docs/ run as they are written, each page from top to bottom in an empty folder."""

import re
import shlex
import sys

import pytest

import bitfreeze.lab.rl  # noqa: F401 - registers its streams before a page is run
from bitfreeze.lab.cli.main import main
from bitfreeze.lab.methods import methods
from bitfreeze.lab.streams import streams
from support.checkout import ROOT

DOCS = ROOT / "docs"
ELSEWHERE = {  # blocks that need a library of their own (tests/integrations), or several ranks (tests/*_ranks.py)
    "integrations.md",
    "finetune.md",
    "scale.md",
}
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if page.name not in ELSEWHERE and re.search(r"^```(python|bash)", page.read_text(), re.MULTILINE)
)
BLOCK = re.compile(r'^```(python|bash)(?: title="([\w.]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITFREEZE_RUNS", str(tmp_path / "runs"))
    registered = [(registry, set(registry)) for registry in (methods, streams)]
    yield tmp_path
    for registry, names in registered:
        for name in registry.keys() - names:
            del registry[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_runs_from_top_to_bottom(page, empty_folder, monkeypatch):
    """A block with a title is a file, commands are typed, and the rest is one Python session."""
    session: dict[str, object] = {}
    for kind, title, text in BLOCK.findall(page.read_text()):
        if title:
            (empty_folder / title).write_text(text)
        elif kind == "python":
            exec(compile(text, str(page), "exec"), session)
        else:
            for line in text.strip().splitlines():
                _type_in(line, monkeypatch)


def _type_in(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert words[0] == "bitfreeze", line
    monkeypatch.setattr(sys, "argv", words)
    main()
