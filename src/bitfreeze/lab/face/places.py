"""Arguments that several functions take."""

from collections.abc import Iterable
from pathlib import Path

Root = Path | str | None  # the folder of runs; None: BITFREEZE_RUNS, else ./runs
Places = str | Path | Iterable[str | Path]  # one folder or name, or several


def several(names: Places) -> list[str]:
    """The names as a list, also where one is given alone."""
    return [str(names)] if isinstance(names, str | Path) else [str(name) for name in names]
