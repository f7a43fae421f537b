"""Names that commands know: registries of streams, networks, methods, figures, engines and datasets."""

import pkgutil
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TypeVar

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Entries by name. An unknown name raises a ValueError that offers the nearest names."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __missing__(self, name: str) -> Entry:
        raise unknown_name(self.kind, name, self)

    def register(self, name: str, entry: Entry) -> Entry:
        """Add an entry and return it. A second, different entry of the same name replaces the first with a warning."""
        if self.get(name, entry) != entry:
            warnings.warn(f"the {self.kind} {name!r} is registered twice: give one of them another name", stacklevel=3)
        self[name] = entry
        return entry


def look_up(kind: str, name: str, known: Mapping[str, Entry]) -> Entry:
    """``known[name]``. An unknown name raises a ValueError that offers the nearest names."""
    if name not in known:
        raise unknown_name(kind, name, known)
    return known[name]


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is not among the known ones."""
    names = sorted(known)
    near = get_close_matches(name.lower().replace("-", "_"), names)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(names) or 'none'}"
    return ValueError(f"there is no {kind} {name!r}: {hint}")


def import_all(package: str, folders: Iterable[str]) -> None:
    """Import every module of a package (its ``__name__`` and ``__path__``), so that it registers what it holds."""
    for module in pkgutil.iter_modules(folders):
        import_module(f"{package}.{module.name}")
