"""Libraries of the extra ``lab``, each imported where it is used."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ..._messages import install
from .errors import DataCorrupt

MOST_PIXELS = 32_000_000  # far above any picture of a dataset here


def lab_module(name: str) -> Any:
    """A module of the extra ``lab``."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise ValueError(f"this needs {name.split('.')[0]}, which is not installed: {install('lab')}") from None


@contextmanager
def open_picture(path: Path, formats: tuple[str, ...] = ("JPEG", "PNG")) -> Iterator[Any]:
    """Open a picture with Pillow. A file that is no picture, or too large to be one, raises DataCorrupt.

    Pillow looks at what a file holds, not at its name, and hands some other formats to programs: hence ``formats``.
    """
    pillow = lab_module("PIL.Image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            opened = pillow.open(path, formats=formats)
        with opened as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"it has {picture.width} x {picture.height} pixels")
            yield picture
    except (
        OSError, SyntaxError, ValueError, pillow.DecompressionBombError, pillow.DecompressionBombWarning
    ) as error:  # fmt: skip
        raise DataCorrupt(f"{path} is no picture, or a broken one ({error})") from error
