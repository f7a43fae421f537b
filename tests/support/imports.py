"""Imports between the modules of a package, read from its source without importing it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Import:
    importer: str
    imported: str
    place: str  # file and line

    def __str__(self) -> str:
        return f"{self.place}: {self.importer} imports {self.imported}"


def modules_of(package: Path) -> dict[str, Path]:
    """The file of each module of the package in this folder; a package stands for its ``__init__``."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        words = file.relative_to(package.parent).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = file
    return found


def imports_of(package: Path) -> list[Import]:
    """Imports of the package's own modules: those at the top of a file and those inside functions, not those that only
    a type checker sees. ``from x import y`` is an import of x.y where that is a module, else of x."""
    modules = modules_of(package)
    found = set()
    for importer, file in modules.items():
        home = importer if file.name == "__init__.py" else importer.rpartition(".")[0]
        for node in _nodes(ast.parse(file.read_text())):
            place = f"{file.relative_to(package.parent)}:{getattr(node, 'lineno', 0)}"
            for name in _names(node, home):
                while name and name not in modules:
                    name = name.rpartition(".")[0]
                if name:
                    found.add(Import(importer, name, place))
    return sorted(found)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below ``if TYPE_CHECKING:``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield other
                yield from _nodes(other)
        else:
            yield node
            yield from _nodes(node)


def _names(node: ast.AST, home: str) -> list[str]:
    """The dotted names that a statement imports; relative ones start from the package ``home``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    above = home.split(".")[: len(home.split(".")) + 1 - node.level] if node.level else []
    base = ".".join([*above, node.module] if node.module else above)
    return [f"{base}.{alias.name}" for alias in node.names]
