"""CONTRIBUTING, the changelog, the citation, hooks and workflows name what exists."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tyro
import yaml

import bitfreeze
from bitfreeze.lab.cli.main import Command
from support.checkout import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BIN = Path(sys.executable).parent  # of the environment that `make` sets up
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "research/README.md")
FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def targets(text: str) -> set[str]:
    """Targets of make that a text names."""
    return set(re.findall(r"(?:^|[`\"] ?|run: )make ([a-z-]+)", text, re.MULTILINE))


def makes(target: str) -> bool:
    return re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) is not None


# CONTRIBUTING


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`((?:[\w.]+/)+[\w.<>]*|[\w.-]+\.(?:toml|txt|yml|md|cff)|Makefile)`", CONTRIBUTING)))
)
def test_contributing_names_files_that_exist(name: str) -> None:
    """Of a file that is to be written, ``<name>.py``, the folder must exist, with others of its kind."""
    place = ROOT / name
    assert any(place.parent.glob(re.sub("<.*?>", "*", place.name) or "*")), name


def test_contributing_names_commands_that_exist() -> None:
    assert targets(CONTRIBUTING) >= {"check", "test", "test-all", "docs", "results"}
    assert all(makes(target) for target in targets(CONTRIBUTING))
    for command in re.findall(r"\.venv/bin/([\w-]+)", CONTRIBUTING):
        assert (BIN / command).exists(), command
    lines = re.findall(r"`bitfreeze (\w.*?)`", CONTRIBUTING)
    assert lines
    for line in lines:
        tyro.cli(Command, args=shlex.split(line))  # ends the test where a command or an option is not there


def test_every_door_of_the_table_has_its_section() -> None:
    table = re.findall(r"^\| \[(.*?)\]\(#(.*?)\) \| \d", CONTRIBUTING, re.MULTILINE)
    headings = re.findall(r"^### (.*)", CONTRIBUTING, re.MULTILINE)
    doors = headings[: headings.index("Plain English, before and after")]
    assert [title.lower() for title in doors] == [name.lower() for name, _ in table]
    assert [anchor(title) for title in doors] == [link for _, link in table]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for link, section in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", (ROOT / page).read_text()):
        target = folder / link if link else ROOT / page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE) if section else []
        assert not section or section in map(anchor, headings), section


@pytest.mark.parametrize("folder", ["benchmarks", "research"])
def test_each_script_has_its_line(folder: str) -> None:
    lines = re.findall(r"^\| `(.*?)` \| .+ \|$", (ROOT / folder / "README.md").read_text(), re.MULTILINE)
    assert sorted(lines) == sorted(file.name for file in (ROOT / folder).glob("*.py"))


# version


def test_the_version_stands_in_one_place() -> None:
    """As a literal, which a build reads without importing torch."""
    source = (ROOT / "src" / "bitfreeze" / "__init__.py").read_text()
    assert re.findall(r'^__version__ = "(\d+\.\d+\.\d+)"$', source, re.MULTILINE) == [bitfreeze.__version__]
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]


def test_the_changelog_has_headings_for_this_version_and_the_next() -> None:
    headings = re.findall(r"^## \[(.*?)\](.*)", CHANGELOG, re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == bitfreeze.__version__
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for _, date in headings[1:])
    sections = set(re.findall(r"^### (.*)", CHANGELOG, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_changelog_names_new_places_that_exist() -> None:
    rows = re.findall(r"^  \| (.*?) \| (.*?) \|$", CHANGELOG, re.MULTILINE)[2:]
    assert len(rows) > 15
    for before, now in rows:
        for module in re.findall(r"`(bitfreeze[\w.]*)`", now):
            assert exists(module), module
        if "the same names in" in now:
            (package,) = re.findall(r"`(bitfreeze[\w.]*)`", now)
            for name in re.findall(r"`(?:[\w.]+\.)?(\w+)`", before):
                assert exists(f"{package}.{name}"), name


def exists(name: str) -> bool:
    """Whether there is a module of this name, or a module whose source has its last part at the top."""
    place = ROOT / "src" / name.replace(".", "/")
    if place.is_dir() or place.with_suffix(".py").exists():
        return True
    home = place.parent / "__init__.py" if place.parent.is_dir() else place.parent.with_suffix(".py")
    return home.exists() and re.search(rf"\b{place.name}\b", home.read_text()) is not None


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert (citation["title"], citation["version"]) == ("bitfreeze", bitfreeze.__version__)
    assert (citation["license"], citation["keywords"]) == (PROJECT["license"], PROJECT["keywords"])
    (paper,) = citation["references"]
    names = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    cited = f"{', '.join(names[:-1])} and {names[-1]}, *{paper['title']}*, CVPR {paper['year']}"
    assert cited in " ".join((ROOT / "README.md").read_text().split())


# hooks and workflows


def test_hooks_run_what_make_check_runs() -> None:
    subprocess.run([BIN / "pre-commit", "validate-config", ROOT / ".pre-commit-config.yaml"], check=True)
    (local,) = read(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    checks = [line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in recipe[1].splitlines()]
    entries = [hook["entry"] for hook in local["hooks"]]
    assert entries == checks
    for entry in entries:
        command = entry.split()[0].removeprefix(".venv/bin/")
        assert (BIN / command).exists()
        assert re.search(rf"^{command}==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_workflows_and_forms_are_valid_yaml(form: Path) -> None:
    assert yaml.safe_load(form.read_text())["name"]


def test_the_workflow_makes_targets_that_exist() -> None:
    workflow = read(".github/workflows/test.yml")
    assert {"push", "pull_request"} <= workflow[True].keys()  # YAML reads the key `on` as true
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1]["run"] == "make ${{ matrix.target }}"
    made = job["strategy"]["matrix"]["target"]
    assert {"test", "test-all", "docs"} <= set(made)
    assert all(makes(target) for target in made)


def test_the_pull_request_template_names_targets_and_files_that_exist() -> None:
    text = (ROOT / ".github" / "pull_request_template.md").read_text()
    assert targets(text) == {"test", "test-all", "results"}
    assert all(makes(target) for target in targets(text))
    assert all((ROOT / name).exists() for name in re.findall(r"\b\w+\.md|\b\w+/(?=`)", text))
