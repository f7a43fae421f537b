"""Libraries that only some readers need."""

from importlib import import_module
from typing import Any


def lab_module(name: str) -> Any:
    """A module of the extra ``lab``, imported when it is needed."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise ValueError(f"reading this dataset needs {name.split('.')[0]}: pip install 'bitfreeze[lab]'") from None
