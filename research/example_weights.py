"""A base model and a text for examples/finetune_lora.py: `python research/example_weights.py`, in an empty folder.

Writes `my-base-model`, stories15M as Transformers keeps models, and `my-text.txt`, 600 lines of Shakespeare. Then
`python examples/finetune_lora.py my-base-model my-text.txt` runs as it stands, with `--free` without protection.
"""

import re
import textwrap
from pathlib import Path

from bitfreeze.lab.data import load_stories15m, load_texts
from bitfreeze.lab.nets import transformers_llama

LINES, WIDTH = 600, 160


def main(folder: Path = Path()) -> None:
    for part in transformers_llama(load_stories15m()):
        part.save_pretrained(folder / "my-base-model")
    text = re.sub(r"\s+", " ", load_texts()["shakespeare"])
    (folder / "my-text.txt").write_text("\n".join(textwrap.wrap(text, WIDTH)[:LINES]) + "\n")


if __name__ == "__main__":
    main()
