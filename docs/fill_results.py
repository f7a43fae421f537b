"""Puts measured figures into pages: `python docs/fill_results.py`.

A block between `<!-- results:NAME -->` and `<!-- end -->` holds the figures of a method, beside the paper's. One
between `<!-- methods -->` and `<!-- end -->` holds a row for each method, and one between `<!-- skills -->` and
`<!-- end -->` what is kept of a pretrained network beside what is learned. All are written from results/.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bitfreeze.lab.methods import Record, methods
from bitfreeze.lab.results.rows import from_csv
from bitfreeze.lab.results.table import Line, summarise, to_markdown
from bitfreeze.lab.runs.columns import Row
from bitfreeze.lab.streams import streams

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
BLOCK = re.compile(r"(<!-- results:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
ALL_METHODS = re.compile(r"(<!-- methods -->\n).*?(<!-- end -->)", re.DOTALL)
SKILLS = re.compile(r"(<!-- skills -->\n).*?(<!-- end -->)", re.DOTALL)
FINE_TUNED = {
    "bitfreeze": ("blip", ""),
    "bitfreeze, base measured on its own text": ("blip", "stream.base_text=own"),
    "fine-tuning": ("ft", ""),
    "linear probe": ("ft_fix", "probe"),
    "EWC": ("ewc", ""),
    "L2 to the start": ("l2", ""),
    "KL to the base": ("kl", ""),
    "average with the base (WiSE-FT)": ("wise", ""),
    "OSF": ("osf", ""),
    "LoRA": ("lora", ""),
    "LoRA, held by bitfreeze": ("blip_lora", ""),
    "replay, 5 % old data": ("er", ""),
    "replay, 20 % old data": ("er", "fifth"),
    "joint training on all data": ("joint", ""),
}  # method and variant of the rows of the table of skills
COMPARED = {
    "alt_cifar": "alternating CIFAR",
    "five_datasets": "five datasets",
    "cifar100_10": "CIFAR-100 in ten",
    "mini_imagenet20": "mini-ImageNet in twenty",
    "vision5": "pretrained, five sets",
}  # streams of the table of all methods


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


def all_methods() -> str:
    """A row for each method of the registry: what it reaches, keeps, costs and needs."""
    measured = [_comparable(summarise(read_rows(stream), stream)) for stream in COMPARED]
    titles = ["method", *COMPARED.values(), "memory", "MB kept", "time of a step", "needs"]
    rows = [
        [
            f"[`{name}`]({page_of(name)})",
            *(found.get(name, "") for found in measured),
            kind.record.memory,
            *_cost(name),
            _needs(kind.record),
        ]
        for name, kind in methods.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, ["---"] * len(titles), *rows]) + "\n"


def skills() -> str:
    """A row for each way to fine-tune: what text and pictures keep, and what they learn."""
    columns = {"text5": {"loss": 2, "base_rise": 2, "new": 2}, "vision5": {"acc": 1, "bwt": 1, "learning_acc": 1}}
    lines = {
        stream: {(line.method, line.variant): line for line in summarise(read_rows(stream), stream)}
        for stream in columns
    }
    titles = ["method", "text: mean loss", "rise on stories", "new texts", "seeds"]
    titles += ["pictures: ACC", "BWT", "learned", "seeds"]
    rows = [titles, ["---"] * len(titles)]
    for title, key in FINE_TUNED.items():
        cells: list[str] = []
        for stream, digits in columns.items():
            line = lines[stream].get(key)
            means = {} if line is None else {name: value["mean"] for name, value in line.figures().items()}
            cells += [f"{means[name] + 0.0:.{digit}f}" if name in means else "" for name, digit in digits.items()]
            cells.append("" if line is None else str(len(line.rows)))
        rows.append([title, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def page_of(method: str) -> str:
    """The page of a method, seen from the page with all methods."""
    if method == "blip":
        return "../methods/directions.md"
    pages = [file.name for file in (HERE / "methods").glob("*.md") if f"results:{method} " in file.read_text()]
    return f"../methods/{pages[0] if pages else 'reference.md'}"


def _comparable(lines: Sequence[Line]) -> dict[str, str]:
    """ACC, BWT and seeds of each method, of its line that is nearest to the settings that most methods share."""
    settings = [frozenset(line.variant.split()) for line in lines]
    shared = Counter(settings).most_common(1)[0][0] if lines else frozenset()
    apart = [len(mine ^ shared) for mine in settings]
    found = {}
    for off, line in sorted(zip(apart, lines, strict=True), key=lambda pair: (-pair[0], len(pair[1].rows))):
        acc, bwt = (f"{round(line.figures()[name]['mean'], 1) + 0.0:.1f}" for name in ("acc", "bwt"))
        found[line.method] = f"{acc} / {bwt} ({len(line.rows)}){' *' if off else ''}"
    return found


def _cost(method: str) -> tuple[str, str]:
    """MB after ten tasks beyond the plain network, and the time of a step beside one of fine-tuning."""
    rows = re.findall(
        r"^\| (\w+) \| ([\d.]+) \| .* \| (-?[\d.]+) \|$", (RESULTS / "costs.md").read_text(), re.MULTILINE
    )
    return {name: (kept, time) for name, time, kept in rows}.get(method, ("", ""))


def _needs(record: Record) -> str:
    needs = {
        "all data of earlier tasks": record.rereads,
        "samples of earlier tasks": record.replays and not record.rereads,
        "networks of its own": record.own_networks,
        "the task at test time": record.scenarios == ("task",),
    }
    return ", ".join(need for need, is_needed in needs.items() if is_needed)


def filled(page: str) -> str:
    page = BLOCK.sub(lambda block: f"{block[1]}\n{figures(block[2])}\n{block[3]}", page)
    page = SKILLS.sub(lambda block: f"{block[1]}\n{skills()}\n{block[2]}", page)
    return ALL_METHODS.sub(lambda block: f"{block[1]}\n{all_methods()}\n{block[2]}", page)


def main() -> None:
    for file in sorted(HERE.rglob("*.md")):
        file.write_text(filled(file.read_text()))


if __name__ == "__main__":
    main()
