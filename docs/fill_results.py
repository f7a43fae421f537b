"""Puts measured figures beside the paper's into the methods' pages: `python docs/fill_results.py`.

Each page has a block between `<!-- results:NAME -->` and `<!-- end -->`; it is written from results/<stream>.csv.
"""

import re
from pathlib import Path

from bitfreeze.lab.results.rows import from_csv
from bitfreeze.lab.results.table import summarise, to_markdown
from bitfreeze.lab.runs.columns import Row
from bitfreeze.lab.streams import streams

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
BLOCK = re.compile(r"(<!-- results:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read_rows(stream: str) -> list[Row]:
    file = RESULTS / f"{stream}.csv"
    return from_csv(file.read_text()) if file.exists() else []


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
