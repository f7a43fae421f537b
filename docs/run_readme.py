"""Runs the code of the README, one block after another, and prints what it prints: `python docs/run_readme.py`.

The blocks need `bitfreeze data get stories15m`.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import torch

README = Path(__file__).parents[1] / "README.md"
RATE = "lr=3e-4"


def run(lr: float | None = None) -> dict[str, Any]:
    """The names that the blocks define."""
    code = "".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    if lr is not None:
        if RATE not in code:
            raise ValueError(f"the README's code must have {RATE}, got another learning rate; mend RATE here")
        code = code.replace(RATE, f"lr={lr}")
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    return names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, help="another learning rate than the README's")
    torch.set_num_threads(1)
    run(parser.parse_args().lr)
