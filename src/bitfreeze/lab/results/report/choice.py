"""The choice of figures and runs on the page, which keeps it readable and small."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from ...runs.columns import common_changes
from ..figures import draw, figures, image
from ..grouping import grouped
from ..stored import StoredRun

GROUPS, RUNS_WITH_BITS = 10, 2
EVERY = ("tradeoff", "memory")  # which have room for any number of methods
BESIDE = ("sequence", "skills", "matrix", "scores", "reward")
LARGE = 150_000  # bytes of an SVG from which a PNG may be smaller
ABLATIONS = ("budget", "prior")
OF_BITS = ("workflow", "heatmaps", "extra_bits", "capacity")


@dataclass(frozen=True)
class Shown:
    """A figure of the page."""

    name: str
    title: str
    reading: str  # what one sees in it
    words: str
    kind: str  # svg+xml or png
    data: bytes


def chosen_figures(runs: list[StoredRun]) -> Iterator[Shown]:
    """Of the runs of one stream: comparisons of runs that differ in method only, ablations, and bits of a few."""
    for setting, group in by_setting(runs).items():
        kept = _no_more(group)
        left = len({run.label for run in group}) - len({run.label for run in kept})
        note = f", {left} more methods not drawn" if left else ""
        for name in EVERY:
            yield from _shown(name, group, setting)
        for name in BESIDE:
            yield from _shown(name, kept, f"{setting}{note}".removeprefix(", "))
    for name in ABLATIONS:
        yield from _shown(name, runs, "")
    of_variants = grouped(with_bits(runs), lambda run: run.config["variant"]).values()
    for run, *_ in list(of_variants)[:RUNS_WITH_BITS]:
        for name in OF_BITS:
            yield from _shown(name, [run], f"{run.label} seed {run.config['seed']}")


def by_setting(runs: list[StoredRun]) -> dict[str, list[StoredRun]]:
    """Runs that can be compared: what was changed of training, network and stream is the same."""
    return grouped(runs, lambda run: " ".join(common_changes(run.config["changes"])))


def with_bits(runs: list[StoredRun]) -> list[StoredRun]:
    """Runs with frozen bits to look at: one of each variant first, those without changes before others."""

    def plainness(run: StoredRun) -> tuple[int, bool, int]:
        return len(run.config["changes"]), bool(run.config["variant"]), run.config["seed"]

    having = sorted((run for run in runs if run.bits), key=plainness)
    seen: dict[str, int] = {}
    ranked = []
    for run in having:
        rank = seen[run.config["variant"]] = seen.get(run.config["variant"], -1) + 1
        ranked.append((rank, run))
    return [run for _, run in sorted(ranked, key=lambda pair: pair[0])]


def _no_more(runs: list[StoredRun]) -> list[StoredRun]:
    """No more methods than a figure can hold, those with their preset's own options first."""
    plain = sorted(runs, key=lambda run: common_changes(run.config["changes"]) != run.config["changes"])
    labels = list(dict.fromkeys(run.label for run in plain))[:GROUPS]
    return [run for run in runs if run.label in labels]


def _shown(name: str, runs: list[StoredRun], of: str) -> Iterator[Shown]:
    """The figure, as SVG unless a PNG is much smaller; nothing where these runs do not have what it needs."""
    try:
        drawing = draw(name, runs)
    except ValueError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks is a box, on a page or not
        svg = image(drawing, "svg")
        png = image(drawing, "png", 130) if len(svg) > LARGE else svg
    kind, data = ("svg+xml", svg) if len(svg) <= len(png) else ("png", png)
    record = figures[name]
    title = record.description[0].upper() + record.description[1:] + (f" ({of})" if of else "")
    yield Shown(name, title, record.reading, drawing.words, kind, data)
