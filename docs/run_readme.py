"""Runs the code of the README, one block after another, and prints what it prints: `python docs/run_readme.py`.

They need `bitfreeze data get stories15m`. ``--lr`` trains at another learning rate than the README's.
"""

import argparse
import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"
RATE = "lr=3e-4"


def run(lr: str | None = None) -> dict[str, Any]:
    """The names that the blocks define."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        if lr is not None:
            block = block.replace(RATE, f"lr={lr}")
        exec(compile(block, str(README), "exec"), names)
    return names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr")
    run(parser.parse_args().lr)
