"""Puts measured figures beside the paper's into the methods' pages: `python docs/fill_results.py`.

Each page has a block between `<!-- results:NAME -->` and `<!-- end -->`; it is written from results/<stream>.csv.
"""

import csv
import re
from pathlib import Path

from bitfreeze.experiments.rows import Row
from bitfreeze.experiments.table import summarise, to_markdown
from bitfreeze.streams import streams

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
BLOCK = re.compile(r"(<!-- results:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WORDS = ("method", "variant", "protocol", "command")


def read_rows(stream: str) -> list[Row]:
    file = RESULTS / f"{stream}.csv"
    lines = csv.DictReader(file.read_text().splitlines()) if file.exists() else []
    return [{k: v if k in WORDS else (float(v) if v else None) for k, v in line.items()} for line in lines]


def figures(method: str) -> str:
    """A table for each stream on which the method was measured."""
    parts = []
    for stream in streams:
        lines = [line for line in summarise(read_rows(stream), stream) if line.method == method]
        if lines:
            parts.append(f"[{stream}](../../results/{stream}.md):\n\n{to_markdown(lines)}")
    return "\n".join(parts) if parts else "Not measured yet.\n"


def filled(page: str) -> str:
    return BLOCK.sub(lambda block: f"{block[1]}\n{figures(block[2])}\n{block[3]}", page)


def main() -> None:
    for file in sorted((HERE / "methods").glob("*.md")):
        file.write_text(filled(file.read_text()))


if __name__ == "__main__":
    main()
