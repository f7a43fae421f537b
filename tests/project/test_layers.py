"""Imports point down, as DESIGN.md draws the house: cli -> sweeps, results -> runs -> ... -> the library."""

import re
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, pairwise, takewhile
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.imports import Import, imports_of, modules_of

PACKAGE = ROOT / "src" / "bitfreeze"

# Parts of the package from the top down. A part may import itself and every part in a row below its own, but no other
# part of its row.
ROWS = (
    ("__main__",),
    ("lab.cli",),
    ("lab",),  # the public names of the laboratory
    ("lab.face",),  # their functions
    ("lab.sweeps", "lab.results"),
    ("lab.runs",),
    ("lab.training", "lab.rl"),
    ("lab.methods", "lab.streams"),
    ("lab.nets",),
    ("lab.data", "lab.tasks"),
    ("lab helpers",),  # every other file directly below lab/
    ("", "integrations"),  # the library's public names, and BLIP inside other libraries
    ("blip",),
    ("fisher",),
    ("model",),
    ("likelihoods", "bits"),
    ("_messages", "_messages"),
)
KNOWN_TO_INTEGRATIONS = ("blip", "_messages", "model.trees")

# Imports that break a rule today, each with the reason why it still stands. An entry that is not needed fails.
ALLOWED = {
    ("bitfreeze.integrations.stable_baselines3", "bitfreeze.likelihoods"): "a policy's actions become a likelihood",
    ("bitfreeze.integrations.transformers", "bitfreeze.likelihoods"): "padded tokens need a likelihood with a mask",
}


def part_of(module: str) -> str:
    """The part of the house that a module belongs to: one of ROWS, where it has a place."""
    words = module.split(".")[1:]
    if words[:1] != ["lab"] or len(words) == 1:
        return words[0] if words else ""
    part = f"lab.{words[1]}"
    known = any(part in row for row in ROWS)
    return part if known or (PACKAGE / "lab" / words[1]).is_dir() else "lab helpers"


def against_layers(imports: Iterable[Import]) -> list[str]:
    """A sentence for each import that does not point down."""
    rows = {part: number for number, row in enumerate(ROWS) for part in row}
    found = []
    for one in imports:
        upper, lower = part_of(one.importer), part_of(one.imported)
        if missing := {upper, lower} - rows.keys():
            found.append(f"{one}: give {', '.join(sorted(missing))} a row in ROWS")
        elif upper != lower and rows[lower] <= rows[upper]:
            found.append(f"{one}: {lower or 'bitfreeze'} does not lie below {upper or 'bitfreeze'}")
        elif upper == "integrations" != lower and not _is_below(one.imported, KNOWN_TO_INTEGRATIONS):
            found.append(f"{one}: integrations know {', '.join(KNOWN_TO_INTEGRATIONS)} only")
    return found


def _is_below(module: str, places: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"bitfreeze.{place}.") for place in places)


def a_cycle(imports: Iterable[Import]) -> list[str]:
    """The imports of one cycle of modules, or none."""
    graph: dict[str, set[str]] = {}
    places = {(one.importer, one.imported): str(one) for one in imports}
    for importer, imported in places:
        graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        nodes = error.args[1][::-1]  # each imports the next
        return [places[pair] for pair in pairwise(nodes)]
    return []


ENDINGS = re.compile(r"|s|d|rs?|e|es|ed|ers?|ors?|ings?|ions?|ations?|ments?|y|ry|ies|ries|al|ics?|able")


def differ_by_ending(one: str, other: str) -> bool:
    """Whether two names are forms of one word, as run and running, or table and tables."""
    stem = "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    rests = [name.removeprefix(stem) for name in (one, other)]
    if len(stem) < 3:
        return False
    return all(ENDINGS.fullmatch(rest) or ENDINGS.fullmatch(rest.removeprefix(stem[-1])) for rest in rests)


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return imports_of(PACKAGE)


def not_allowed(imports: Iterable[Import]) -> list[Import]:
    return [one for one in imports if (one.importer, one.imported) not in ALLOWED]


def test_imports_point_down(imports: list[Import]) -> None:
    found = against_layers(not_allowed(imports))
    assert not found, "\n" + "\n".join(found)


def test_no_module_imports_itself_in_a_circle(imports: list[Import]) -> None:
    found = a_cycle(not_allowed(imports))
    assert not found, "these imports form a cycle:\n" + "\n".join(found)


def test_the_library_never_imports_the_laboratory(imports: list[Import]) -> None:
    """``python -m bitfreeze`` is the laboratory's command: the only file of the library's folder that may."""
    found = [
        str(one)
        for one in imports
        if _is_below(one.imported, ["lab"]) and not _is_below(one.importer, ["lab", "__main__"])
    ]
    assert not found, "\n" + "\n".join(found)


def test_every_exception_is_still_needed(imports: list[Import]) -> None:
    by_pair = {(one.importer, one.imported): one for one in imports}
    kept = not_allowed(imports)
    for pair, reason in ALLOWED.items():
        assert reason
        assert pair in by_pair, f"{pair[0]} does not import {pair[1]} any more: take the entry out of ALLOWED"
        one = by_pair[pair]
        broken = against_layers([one]) or a_cycle([*kept, one])
        assert broken, f"{one} breaks no rule any more: take the entry out of ALLOWED"


def test_few_files_lie_directly_below_the_package() -> None:
    files = sorted(file.name for file in PACKAGE.glob("*.py"))
    assert len(files) <= 5, f"{', '.join(files)}: put a new file into a folder"


def test_every_folder_is_a_package() -> None:
    """A folder without ``__init__.py`` can be imported, but neither mypy nor the reference looks into it."""
    folders = {file.parent for file in PACKAGE.rglob("*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_names_within_a_folder_differ_by_more_than_an_ending() -> None:
    folders: dict[str, list[str]] = {}
    for module in modules_of(PACKAGE):
        folder, _, name = module.rpartition(".")
        folders.setdefault(folder, []).append(name)
    found = [
        f"{folder}: {one} and {other}"
        for folder, names in folders.items()
        for one, other in combinations(names, 2)
        if differ_by_ending(one, other)
    ]
    assert not found, "one of each pair needs a name that says what it is:\n" + "\n".join(found)


# the checks themselves, on packages that break the rules


def made(folder: Path, files: dict[str, str]) -> list[Import]:
    for name, text in files.items():
        file = folder / "bitfreeze" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return imports_of(folder / "bitfreeze")


def pairs(imports: Iterable[Import]) -> set[tuple[str, str]]:
    return {(one.importer.removeprefix("bitfreeze."), one.imported.removeprefix("bitfreeze.")) for one in imports}


def test_every_form_of_import_is_found(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        {
            "__init__.py": "from . import bits\nfrom .blip import BLIP",
            "bits.py": "import math\nimport torch.nn",
            "blip/__init__.py": "from .blip import BLIP",
            "blip/blip.py": "from .. import bits as b\nfrom ..model.ranks import Ranks\nBLIP = 1",
            "model/__init__.py": "",
            "model/ranks.py": "def lazy():\n    import bitfreeze.bits\n    from bitfreeze.blip import BLIP\nRanks = 1",
            "model/typed.py": (
                "import typing\nif typing.TYPE_CHECKING:\n    from . import ranks\nelse:\n    from .. import bits"
            ),
        },
    )
    assert pairs(found) == {
        ("bitfreeze", "bits"), ("bitfreeze", "blip"), ("blip", "blip.blip"), ("blip.blip", "bits"),
        ("blip.blip", "model.ranks"), ("model.ranks", "bits"), ("model.ranks", "blip"), ("model.typed", "bits"),
    }  # fmt: skip
    assert str(next(one for one in found if one.imported == "bitfreeze.model.ranks")) == (
        "bitfreeze/blip/blip.py:2: bitfreeze.blip.blip imports bitfreeze.model.ranks"
    )


@pytest.mark.parametrize(
    ("importer", "imported", "reason"),
    [
        ("bits", "blip.rules", "blip does not lie below bits"),
        ("fisher.plan", "blip.rules", "blip does not lie below fisher"),
        ("model.ranks", "fisher", "fisher does not lie below model"),
        ("blip.blip", "lab.tasks", "lab.tasks does not lie below blip"),
        ("blip.blip", "integrations.lightning", "integrations does not lie below blip"),
        ("blip.blip", "bitfreeze", "bitfreeze does not lie below blip"),
        ("lab.runs.run", "lab.results.table", "lab.results does not lie below lab.runs"),
        ("lab.sweeps.local", "lab.results", "lab.results does not lie below lab.sweeps"),
        ("lab.tasks", "lab.data.root", "lab.data does not lie below lab.tasks"),
        ("lab.options", "lab.tasks", "lab.tasks does not lie below lab helpers"),
        ("lab.runs.run", "lab", "lab does not lie below lab.runs"),
        ("integrations.peft", "fisher", "integrations know blip, _messages, model.trees only"),
        ("integrations.peft", "model", "integrations know blip, _messages, model.trees only"),
        ("attic.old", "bits", "give attic a row in ROWS"),
    ],
)
def test_an_import_that_points_up_is_named(importer: str, imported: str, reason: str) -> None:
    names = (f"bitfreeze.{name}" if name != "bitfreeze" else name for name in (importer, imported))
    (found,) = against_layers([Import(*names, "file.py:1")])
    assert found.startswith("file.py:1: bitfreeze.")
    assert found.endswith(reason)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("__main__", "lab.cli.main"), ("lab.cli.main", "lab"), ("lab", "lab.sweeps"), ("lab.cli.main", "lab.tasks"),
        ("lab.rl.ppo", "lab.rl.games"), ("lab.nets.mlp", "lab.registry"), ("lab.options", "bits"),
        ("integrations.peft", "model.trees"), ("integrations.peft", "integrations.state_file"),
        ("blip.blip", "bits"),
    ],
)  # fmt: skip
def test_an_import_that_points_down_is_fine(importer: str, imported: str) -> None:
    assert against_layers([Import(f"bitfreeze.{importer}", f"bitfreeze.{imported}", "")]) == []


def test_a_cycle_is_found_through_functions_and_packages(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "one.py": "from . import two",
        "two.py": "def late():\n    from .folder import three",
        "folder/__init__.py": "from .inner import three",
        "folder/inner.py": "from ..four import x",
        "four.py": "x = 1",
    }
    assert a_cycle(made(tmp_path, files)) == []
    found = a_cycle(made(tmp_path, {"four.py": "from .two import late"}))
    assert {text.partition(": ")[2].replace("bitfreeze.", "") for text in found} == {
        "two imports folder", "folder imports folder.inner", "folder.inner imports four", "four imports two",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("run", "runs", True), ("run", "running", True), ("table", "tables", True), ("registry", "register", True),
        ("registry", "registries", True), ("attach", "attachment", True), ("schedule", "scheduler", True),
        ("acl", "acl_r", False), ("bits", "bit_history", False), ("labels", "layers", False), ("ucb", "vcl", False),
        ("data", "dataset", False), ("page", "pages", True), ("download", "download_display", False),
    ],
)  # fmt: skip
def test_endings_are_told_from_words(one: str, other: str, alike: bool) -> None:
    assert differ_by_ending(one, other) is alike
    assert differ_by_ending(other, one) is alike
