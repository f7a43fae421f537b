"""Draws the packages and the way of data through them: `python docs/house.py` writes docs/images/house.svg.

Boxes and arrows come from the imports of the source. An arrow that follows from others is left out, and one arrow
stands for all imports of the library by the laboratory.
"""

import sys
from functools import cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.imports import imports_of  # noqa: E402

PACKAGE = ROOT / "src" / "bitfreeze"
PICTURE = ROOT / "docs" / "images" / "house.svg"
ASIDE = {"__main__", "_messages"}  # one line, and sentences that everybody prints

# What a part does, and which station of the way of data it is.
PARTS = {
    "lab.cli": (0, "commands"),
    "lab": (0, "public names"),
    "lab.face": (0, "a function a command"),
    "lab.results": (8, "tables, figures, report"),
    "lab.sweeps": (0, "many runs: local, Ray, SLURM"),
    "lab.runs": (7, "settings, events, checkpoints"),
    "lab.training": (3, "tasks become batches"),
    "lab.rl": (3, "games become batches"),
    "lab.methods": (5, "loss, and what is kept"),
    "lab.nets": (4, "batches become scores"),
    "lab.streams": (2, "arrays become tasks"),
    "lab.data": (1, "files become arrays"),
    "lab files": (0, "tasks.py, metrics.py ..."),
    "bitfreeze": (0, "public names"),
    "integrations": (0, "plug-ins of other libraries"),
    "blip": (6, "clamps steps, freezes bits"),
    "fisher": (6, "what a task told about weights"),
    "likelihoods": (0, "what scores mean"),
    "model": (0, "parameters, shards, ranks"),
    "bits": (0, "arithmetic of intervals"),
}

WIDTH, LEFT_WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW, MARGIN = 1240, 500, 204, 48, 78, 24
LINE = 'stroke="#667" marker-end="url(#tip)"'
TITLE = 'font-weight="bold" text-anchor="middle"'
GAP = 60  # between the laboratory and the library


def part_of(module: str) -> str:
    words = module.split(".")[1:]
    if words[:1] != ["lab"]:
        return words[0] if words else "bitfreeze"
    if len(words) == 1:
        return "lab"
    return f"lab.{words[1]}" if (PACKAGE / "lab" / words[1]).is_dir() else "lab files"


def graph() -> dict[str, set[str]]:
    """The parts that each part imports."""
    found: dict[str, set[str]] = {}
    for one in imports_of(PACKAGE):
        upper, lower = part_of(one.importer), part_of(one.imported)
        if not {upper, lower} & ASIDE:
            found.setdefault(upper, set())
            found.setdefault(lower, set())
            if upper != lower:
                found[upper].add(lower)
    return found


def reduced(below: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without the arrows that follow from others."""

    @cache
    def reach(part: str) -> frozenset[str]:
        return frozenset(below[part]).union(*(reach(lower) for lower in below[part]))

    return {part: {q for q in lower if not any(q in reach(other) for other in lower)} for part, lower in below.items()}


def places(below: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """The middle of each box: the laboratory to the left, the library to the right, each part above all it imports."""

    @cache
    def level(part: str) -> int:
        mine = [lower for lower in below[part] if is_lab(lower) == is_lab(part)]
        return 1 + max(map(level, mine), default=-1)

    top = max(map(level, below))
    found: dict[str, tuple[float, float]] = {}

    def under_its_users(part: str) -> tuple[float, str]:
        users = [found[user][0] for user in found if part in below[user] and is_lab(user) == is_lab(part)]
        return sum(users) / max(len(users), 1), part

    for side, left, width in ((True, 0, LEFT_WIDTH), (False, LEFT_WIDTH + GAP, WIDTH - LEFT_WIDTH - GAP)):
        for row in range(top, -1, -1):
            parts = [part for part in below if is_lab(part) == side and level(part) == row]
            for number, part in enumerate(sorted(parts, key=under_its_users)):
                x = left + width * (number + 0.5) / len(parts)
                found[part] = (x, MARGIN + 60 + (top - row) * ROW)
    return found


def is_lab(part: str) -> bool:
    return part.startswith("lab")


def drawn() -> str:
    below = graph()
    if below.keys() != PARTS.keys():
        raise SystemExit(f"PARTS must name the parts of the source: {sorted(below.keys() ^ PARTS.keys())} differ")
    if up := [(part, lower) for part in below for lower in below[part] if is_lab(lower) > is_lab(part)]:
        raise SystemExit(f"the library must not import the laboratory: {up}")
    middle = places(below)
    bottom = max(y for _, y in middle.values()) + BOX_HEIGHT / 2 + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom:.0f}" font-family="sans-serif">',
        "<title>Packages of bitfreeze, what each imports, and the way of data through them</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{bottom:.0f}" fill="#fff"/>',
        *_panel("the laboratory, bitfreeze.lab", 8, 8, LEFT_WIDTH - 12, bottom - 16, "#eef3fb"),
        *_panel(
            "the library, bitfreeze", LEFT_WIDTH + GAP - 4, 8, WIDTH - LEFT_WIDTH - GAP - 4, bottom - 16, "#fdf3e7"
        ),
        f'<path d="M{LEFT_WIDTH - 4} {bottom / 2:.0f}h{GAP - 4}" {LINE} stroke-width="4"/>',
    ]
    for part, others in sorted(reduced(below).items()):
        lines += [_arrow(middle[part], middle[other]) for other in sorted(others) if is_lab(part) == is_lab(other)]
    for part in sorted(below):
        lines += _box(part, *middle[part])
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(title: str, x: float, y: float, width: float, height: float, colour: str) -> list[str]:
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height:.0f}" rx="10" fill="{colour}"/>',
        f'<text x="{x + 16}" y="{y + 28}" font-size="18" font-weight="bold" fill="#223">{title}</text>',
    ]


def _arrow(upper: tuple[float, float], lower: tuple[float, float]) -> str:
    """From the lower edge of a box to the upper edge of the other; past a row in between it starts at the side."""
    (x1, y1), (x2, y2) = upper, lower
    if y2 - y1 > ROW and x1 != x2:
        x1 += BOX_WIDTH / 2 if x2 > x1 else -BOX_WIDTH / 2
    else:
        y1 += BOX_HEIGHT / 2
    way = f"M{x1:.0f} {y1:.0f}L{x2:.0f} {y2 - BOX_HEIGHT / 2:.0f}"
    return f'<path d="{way}" {LINE} stroke-width="1.5"/>'


def _box(part: str, x: float, y: float) -> list[str]:
    station, does = PARTS[part]
    left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
    lines = [
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#fff" '
        'stroke="#445"/>',
        f'<text x="{x:.0f}" y="{y - 4:.0f}" font-size="16" {TITLE} fill="#112">{part}</text>',
        f'<text x="{x:.0f}" y="{y + 15:.0f}" font-size="13.5" text-anchor="middle" fill="#334">{escape(does)}</text>',
    ]
    if station:
        lines += [
            f'<circle cx="{left:.0f}" cy="{top:.0f}" r="13" fill="#14507a"/>',
            f'<text x="{left:.0f}" y="{top + 5:.0f}" font-size="15" {TITLE} fill="#fff">{station}</text>',
        ]
    return lines


if __name__ == "__main__":
    PICTURE.write_text(drawn())
