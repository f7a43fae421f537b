"""Libraries that only some readers need."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ..missing import install
from .errors import DataCorrupt


def lab_module(name: str) -> Any:
    """A module of the extra ``lab``, imported when it is needed."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise ValueError(f"reading this dataset needs {name.split('.')[0]}: {install('lab')}") from None


@contextmanager
def open_picture(path: Path, formats: tuple[str, ...] = ("JPEG", "PNG")) -> Iterator[Any]:
    """A picture of Pillow's. Whatever it says of a file that is none, or too large to be one, is DataCorrupt.

    Pillow goes by what a file holds, whatever it is called; some other formats it hands to programs, such as EPS.
    """
    pillow = lab_module("PIL.Image")
    try:
        with pillow.open(path, formats=formats) as picture:
            yield picture
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataCorrupt(f"{path} is no picture, or a broken one ({error})") from error
