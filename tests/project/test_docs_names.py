"""Links, commands, names and files that pages write about exist. Pictures have a text, and tables have headers."""

import importlib
import os
import re
import runpy
import shlex
from pathlib import Path

import pytest
import tyro

import bitfreeze.lab.rl  # noqa: F401 - registers its streams
from bitfreeze import lab
from bitfreeze.lab.cli.main import Command
from bitfreeze.lab.cli.training import Run, Sweep
from bitfreeze.lab.streams import streams
from support.checkout import ROOT
from support.imports import modules_of

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "bitfreeze"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
HOMES = (ROOT, SOURCE, SOURCE / "lab", SOURCE / "blip", SOURCE / "fisher")  # of files that a page names
MODULES = modules_of(SOURCE)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> list[str]:
    """What `#...` of a link may say, as GitHub and the site have it."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def dead_links(text: str, page: Path) -> list[str]:
    found = []
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / link if link else page
        if not link.startswith("http") and (not target.exists() or (anchor and anchor not in anchors(target))):
            found.append(f"{link}#{anchor}" if anchor else link)
    return found


def commands(text: str) -> list[str]:
    """Command lines of `bitfreeze` in blocks and between backticks, without what stands before them."""
    blocks = "\n".join(re.findall(r"^```(?:bash)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    blocks += "\n" + "\n".join(re.findall(r"^    (bitfreeze .*)", text, re.MULTILINE))
    lines = blocks.replace("\\\n", " ").splitlines()
    inline = re.findall(r"(?<!`)`([^`]*)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    found = [re.match(r"(?:\w+=\S+ |torchrun .*-m )*bitfreeze (.*)", " ".join(line.split())) for line in lines + inline]
    return [match[1] for match in found if match]


def refused(line: str) -> str:
    """Why a command line would be refused, or nothing. The bare name of a command is one if it has a help text."""
    words = shlex.split(line, comments=True)
    if words in (["run"], ["sweep"], ["table"], ["show"], ["figure"], ["data", "get"]):
        words.append("--help")
    try:
        command = tyro.cli(Command, args=words)
    except SystemExit as end:
        return f"{line}: {end.code}" if end.code else ""
    if not isinstance(command, Run | Sweep) or command.stream not in streams:
        return ""  # the rest are names of runs, and streams of plugins
    try:
        for method in [command.method] if isinstance(command, Run) else command.methods.split(","):
            name, _, variant = method.partition(":")
            lab.make_config(command.stream, name, variant or getattr(command, "variant", ""), changes=command.changes())
    except ValueError as error:
        return f"{line}: {error}"
    return ""


def exists(name: str) -> bool:
    """Whether a dotted name leads somewhere. Modules of integrations/ are read, because they need other libraries."""
    home = name
    while home not in MODULES:
        home = home.rpartition(".")[0]
    rest = name.removeprefix(home).lstrip(".").split(".") if name != home else []
    if home.startswith("bitfreeze.integrations."):
        return all(re.search(rf"\b{word}\b", MODULES[home].read_text()) for word in rest)
    value = importlib.import_module(home)
    for word in rest:
        if not hasattr(value, word):
            return False
        value = getattr(value, word)
    return True


def missing_files(text: str) -> list[str]:
    names = re.findall(r"`(?:python )?((?:[\w<>.-]+/)+[\w<>*.-]+\.(?:py|md|toml|csv))\b", text)
    return [name for name in names if not any(any(home.glob(re.sub("<.*?>", "*", name))) for home in HOMES)]


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page.read_text(), page) == []


@every_page
def test_commands_would_be_carried_out(page: Path) -> None:
    assert [reason for line in commands(page.read_text()) if (reason := refused(line))] == []


@every_page
def test_names_exist(page: Path) -> None:
    names = set(re.findall(r"\bbitfreeze(?:\.[a-zA-Z_]\w*)+", re.sub(r"https?://\S+", "", page.read_text())))
    assert [name for name in sorted(names) if not exists(name)] == []


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    assert missing_files(page.read_text()) == []


@every_page
def test_pictures_have_a_text_and_tables_have_headers(page: Path) -> None:
    text = page.read_text()
    assert [image for alt, image in re.findall(r"!\[(.*?)\]\((.*?)\)", text, re.DOTALL) if len(alt) < 20] == []
    headers = re.findall(r"^ *(\|.*\|)\n *\|[ :|-]+\|$", text, re.MULTILINE)
    assert [header for header in headers if not all(cell.strip() for cell in header.strip("|").split("|"))] == []


def test_the_navigation_has_at_most_seven_entries_and_every_page() -> None:
    navigation = runpy.run_path(str(DOCS / "conf.py"))["NAVIGATION"]
    assert len(navigation["index"]) <= 7
    shown = {"index", *(name for below in navigation.values() for name in below)}
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if page not in shown and f"{os.path.dirname(page)}/*" not in shown} == set()
    assert {page for page in shown if "*" not in page} <= pages
    assert navigation.keys() <= shown


def test_the_picture_of_the_house_is_that_of_the_imports() -> None:
    house = runpy.run_path(str(DOCS / "house.py"))
    assert house["drawn"]() == house["PICTURE"].read_text(), "run python docs/house.py"


# the checks themselves


def test_what_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title, or two\n")
    text = "[a](page.md) [b](page.md#a-title-or-two) [c](page.md#else) [d](#no) [e](gone.md) [f](https://x.org/y)"
    assert dead_links(text, page) == ["page.md#else", "#no", "gone.md"]
    assert commands("`bitfreeze list x` and\n```\nA=b bitfreeze run y \\\n   --seed 1  # why\n```\n") == [
        "run y --seed 1 # why",
        "list x",
    ]
    assert refused("run mnist5 --method ewc --set method.strength=2") == ""
    assert "strong" in refused("run mnist5 --method ewc --set method.strong=2")
    assert refused("run mnist5 --nonsense 3")
    assert refused("run mnist5 --method none")
    assert exists("bitfreeze.BLIP.attach")
    assert exists("bitfreeze.integrations.lightning.BLIPCallback")
    assert not exists("bitfreeze.lab.nothing")
    assert missing_files("`methods/ewc.py` `python benchmarks/scale.py` `methods/gone.py`") == ["methods/gone.py"]
