"""Writes the tables of this folder from the finished runs in BITFREEZE_RUNS: `make results`.

A stream's own page holds its runs on test data. Runs that chose settings on validation data, and those that change one
thing at a time, have pages of their own.
"""

from pathlib import Path

from bitfreeze.experiments.rows import Row, finished_rows, to_csv
from bitfreeze.experiments.store import runs_root
from bitfreeze.experiments.table import to_page
from bitfreeze.streams import streams

HERE = Path(__file__).parent
CUT_SHORT = ("training.epochs=10", "stream.tasks=")  # what runs of an ablation have, and no others
TITLES = {
    "tuning_": "Choosing settings on {}: tested on 10 % of the training samples, which are not trained on",
    "ablation_": "Ablation of BLIP on {}: one thing at a time, cut short as the variant says",
    "": "{}",
}


def kind(row: Row) -> str:
    """Which of the pages a run belongs to."""
    words = row["variant"].split()
    if "stream.tuning=true" in words:
        return "tuning_"
    return "ablation_" if row["method"] == "blip" and any(word.startswith(CUT_SHORT) for word in words) else ""


def main() -> None:
    for stream in streams:
        rows = finished_rows(runs_root(), stream)
        for prefix, title in TITLES.items():
            mine = [row for row in rows if kind(row) == prefix]
            if mine:
                (HERE / f"{prefix}{stream}.csv").write_text(to_csv(mine))
                page = to_page(mine, stream, title=title.format(stream))
                (HERE / f"{prefix}{stream}.md").write_text(page + "\n")
                print(f"{prefix}{stream}: {len(mine)} runs")


if __name__ == "__main__":
    main()
