"""A BLIP's state as one safetensors file, for libraries whose checkpoints are folders. Nothing is pickled."""

import json
import os
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from ..blip import BLIP
from ..trees import decode, encode

NAME = "blip.safetensors"


def save_state(blip: BLIP, folder: str | os.PathLike[str]) -> None:
    """Write ``blip.safetensors`` into a folder: aside and renamed, so that it is whole or not there."""
    tree, tensors = encode(blip.state_dict())
    aside = Path(folder) / f".{NAME}.part"
    save_file(tensors, aside, metadata={"state": json.dumps(tree)})
    aside.replace(Path(folder) / NAME)


def load_state(blip: BLIP, folder: str | os.PathLike[str]) -> None:
    """Take up the state that ``save_state`` wrote."""
    path = Path(folder) / NAME
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: give the folder of a checkpoint that was written with BLIP")
    with safe_open(path, framework="pt") as file:
        tree = json.loads(file.metadata()["state"])
        # cloned, for what is mapped from a file changes with it
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    blip.load_state_dict(decode(tree, tensors))
