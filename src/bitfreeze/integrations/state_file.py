"""BLIP's state as one safetensors file, for libraries whose checkpoints are folders. Nothing is pickled."""

import os
from pathlib import Path

from ..blip.blip import BLIP
from ..model.trees import read_tree, write_tree

NAME = "blip.safetensors"


def save_state(blip: BLIP, folder: str | os.PathLike[str]) -> None:
    """Write the state into ``folder/blip.safetensors``.

    The file is written under another name and then renamed, so it is never incomplete.

    Args:
        blip: the BLIP to save.
        folder: a folder that exists.
    """
    write_tree(Path(folder) / NAME, blip.state_dict())


def load_state(blip: BLIP, folder: str | os.PathLike[str]) -> None:
    """Load the state that ``save_state`` wrote into ``folder``.

    Args:
        blip: a BLIP of the same model and settings.
        folder: the folder that was given to ``save_state``.

    Raises:
        FileNotFoundError: the folder has no ``blip.safetensors``.
        ValueError: the file is damaged, or the state is that of another model or of other settings.
    """
    path = Path(folder) / NAME
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a checkpoint that was written with BLIP")
    blip.load_state_dict(read_tree(path))
