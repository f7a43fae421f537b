"""Public names say what they do, in a form that the reference shows, with examples that run."""

import ast
import doctest
import importlib
import inspect
import re
import textwrap
from dataclasses import dataclass, is_dataclass
from itertools import pairwise
from types import ModuleType

import pytest

from support.checkout import ROOT

SOURCE = ROOT / "src" / "bitfreeze"
PUBLIC = ("bitfreeze", "bitfreeze.fisher", "bitfreeze.lab", "bitfreeze.likelihoods")
WITH_EXAMPLES = (
    "bitfreeze.bits",
    "bitfreeze.fisher.estimation",
    "bitfreeze.lab.face.names",
    "bitfreeze.lab.face.training",
    *(
        f"bitfreeze.{folder}.{file.stem}"
        for folder in ("blip", "likelihoods")
        for file in sorted((SOURCE / folder).glob("[!_]*.py"))
    ),
)
SECTION = re.compile(r"^ *(Args|Attributes|Returns|Example):$", re.MULTILINE)


def public_objects() -> dict[str, object]:
    """Functions and classes by their public name, and the public methods of these classes; each object once."""
    found: dict[str, object] = {}
    for place in PUBLIC:
        module = importlib.import_module(place)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if not inspect.ismodule(value) and not any(value is other for other in found.values()):
                found[f"{place}.{name}"] = value
                if inspect.isclass(value):
                    found |= {f"{place}.{name}.{method}": function for method, function in methods_of(value).items()}
    return found


def methods_of(kind: type) -> dict[str, object]:
    """Public methods that a class adds to those of its bases."""
    inherited = {name for base in kind.__bases__ for name in dir(base)}
    own = {name: getattr(kind, name) for name in vars(kind) if not name.startswith("_") and name not in inherited}
    return {name: value for name, value in own.items() if inspect.isroutine(value)}


def docstring_of(value: object) -> str:
    """The docstring that stands in the source: not a base class's, nor the signature that a dataclass makes up."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return "" if not text or text.startswith(f"{value.__name__}(") else text


def failures_of(module: ModuleType) -> str:
    """What doctest says of examples that print something else than they promise."""
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, module.__name__):
        runner.run(test, out=told.append)
    return "".join(told)


def missing_sections(value: object) -> list[str]:
    """Sections that a docstring should have and lacks. A method needs no example: that of its class shows it."""
    there = set(SECTION.findall(docstring_of(value)))
    signature = inspect.signature(value)
    parameters = [name for name in signature.parameters if name not in ("self", "cls")]
    if is_dataclass(value):
        return [] if there & {"Args", "Attributes"} or explains_fields(value) else ["Attributes"]
    is_function = inspect.isroutine(value)
    is_method = is_function and "." in value.__qualname__
    returns = is_function and signature.return_annotation not in (None, "None")
    wanted = {
        "Args": bool(parameters),
        "Returns": returns and (bool(parameters) or not is_method),
        "Example": not is_method,
    }
    return [section for section, is_wanted in wanted.items() if is_wanted and section not in there]


def explains_fields(kind: type) -> bool:
    """Whether a string stands below each field of a dataclass, where the reference looks for it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    pairs = pairwise([*tree.body, ast.Pass()])
    return all(_is_string(below) for field, below in pairs if isinstance(field, ast.AnnAssign))


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@pytest.mark.parametrize("name", public_objects())
def test_a_public_name_has_a_docstring_with_its_sections(name: str) -> None:
    value = public_objects()[name]
    assert docstring_of(value), f"{name} has no docstring"
    missing = missing_sections(value)
    assert not missing, f"the docstring of {name} has no section {', '.join(missing)}"


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_print_what_they_say(name: str) -> None:
    told = failures_of(importlib.import_module(name))
    assert not told, told


# the checks themselves


def with_sections(x: int) -> int:
    """Twice a number.

    Args:
        x: The number.

    Returns:
        2 * x.

    Example:
        >>> with_sections(2)
        4
    """
    return 2 * x


def without_sections(x: int) -> int:
    """Twice a number. Args: in a sentence are no section."""
    return 2 * x


class Bare:
    def __init__(self, x: int) -> None:
        """Takes a number."""


@dataclass
class Fields:
    x: int
    """A number."""
    y: int


@dataclass
class ExplainedFields:
    x: int
    """A number."""
    y: int = 0
    """Another."""


def test_missing_sections_are_named() -> None:
    assert missing_sections(with_sections) == []
    assert missing_sections(without_sections) == ["Args", "Returns", "Example"]
    assert missing_sections(Bare) == ["Args", "Example"]
    assert missing_sections(Fields) == ["Attributes"]
    assert missing_sections(ExplainedFields) == []
    assert docstring_of(Fields) == docstring_of(Bare) == ""


@pytest.mark.parametrize(("printed", "says"), [("2", ""), ("2...", ""), ("3", "Expected:\n    3\nGot:\n    2\n")])
def test_an_example_that_prints_something_else_fails(printed: str, says: str) -> None:
    module = ModuleType("made")
    exec(f'"""\n>>> 1 + 1\n{printed}\n"""', module.__dict__)
    told = failures_of(module)
    assert says in told
    assert bool(told) == bool(says)
