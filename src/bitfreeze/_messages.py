"""Words to users: warnings that name their own line, and how to install what a part needs."""

import sys
import warnings
from pathlib import Path

OUR_FOLDER = str(Path(__file__).parent)


def warn_caller(message: str) -> None:
    """Warn at the innermost line that belongs neither to this package nor to torch."""
    import torch  # here, because error messages must not wait for it

    inside = OUR_FOLDER, str(Path(torch.__file__).parent)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def install(extra: str) -> str:
    """Command that installs an extra, to end an error message with."""
    return f"pip install -e '.[{extra}]' in the checkout of bitfreeze"
