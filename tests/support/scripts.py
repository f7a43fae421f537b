"""Scripts of benchmarks/ and research/ as modules, imported as they import each other: by bare names."""

import importlib
import sys
from types import ModuleType

from support.checkout import ROOT


def script(place: str) -> ModuleType:
    """The module of ``folder/name``."""
    folder, _, name = place.partition("/")
    sys.path.insert(0, str(ROOT / folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / folder))
