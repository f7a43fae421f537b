"""Methods, streams and networks of the user's own: a file that registers them is named in BITFREEZE_PLUGINS."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

VARIABLE = "BITFREEZE_PLUGINS"


def load_plugins() -> None:
    """Import each file that BITFREEZE_PLUGINS names (separated as in PATH), once."""
    for number, name in enumerate(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))):
        path = Path(name).expanduser().resolve()
        if not path.is_file():
            raise ValueError(
                f"{VARIABLE} names {name}, which is not there: give Python files, separated by {os.pathsep!r}"
            )
        module_name = f"bitfreeze_plugin_{number}_{path.stem}"
        if module_name not in sys.modules:
            spec = spec_from_file_location(module_name, path)
            if spec is None or spec.loader is None:
                raise ValueError(f"{VARIABLE} names {name}, which is no Python file: it must end in .py")
            sys.modules[module_name] = module = module_from_spec(spec)
            spec.loader.exec_module(module)
