"""BLIP's state as one safetensors file, for libraries whose checkpoints are folders. Nothing is pickled."""

import json
import os
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from ..blip.blip import BLIP
from ..model.trees import decode, encode

NAME = "blip.safetensors"


def save_state(blip: BLIP, folder: str | os.PathLike[str]) -> None:
    """Write the state into ``folder/blip.safetensors``.

    The file is written under another name and then renamed, so it is never incomplete.

    Args:
        blip: the BLIP to save.
        folder: a folder that exists.
    """
    tree, tensors = encode(blip.state_dict())
    aside = Path(folder) / f".{NAME}.part"
    save_file(tensors, aside, metadata={"state": json.dumps(tree)})
    aside.replace(Path(folder) / NAME)


def load_state(blip: BLIP, folder: str | os.PathLike[str]) -> None:
    """Load the state that ``save_state`` wrote into ``folder``.

    Args:
        blip: a BLIP of the same model and settings.
        folder: the folder that was given to ``save_state``.

    Raises:
        FileNotFoundError: the folder has no ``blip.safetensors``.
        ValueError: the state is that of another model or of other settings.
    """
    path = Path(folder) / NAME
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a checkpoint that was written with BLIP")
    with safe_open(path, framework="pt") as file:
        tree = json.loads(file.metadata()["state"])
        # Cloned, because a tensor that is mapped from a file changes with the file.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - file is no mapping
    blip.load_state_dict(decode(tree, tensors))
