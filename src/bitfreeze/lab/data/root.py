"""The folder that holds the datasets."""

import os
import sys
from pathlib import Path


def data_root() -> Path:
    """The folder that has a folder for each dataset: ``BITFREEZE_DATA``, or else one in the platform's cache folder."""
    chosen = os.environ.get("BITFREEZE_DATA")
    return Path(chosen).expanduser() if chosen else _cache_folder() / "bitfreeze" / "data"


def _cache_folder() -> Path:
    if sys.platform == "win32":
        return _from_environment("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return _from_environment("XDG_CACHE_HOME") or Path.home() / ".cache"


def _from_environment(variable: str) -> Path | None:
    """The folder that a variable names, or None if the path is relative: the XDG specification says to ignore it."""
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else None
