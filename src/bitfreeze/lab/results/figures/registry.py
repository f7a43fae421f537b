"""Figures by name, how one is drawn, and how it is written."""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...._messages import install
from ...registry import Registry
from ...runs.durable import write_aside
from ..stored import StoredRun
from .style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure and what it shows in words, for those who cannot see it.

    Attributes:
        figure: Figure of matplotlib.
        words: What the figure shows.
        name: Stream, run and figure, such as `digits5_blip-strict_seed0_workflow`: what its files are called.
        files: Files that the figure was written to.
    """

    figure: "Figure"
    words: str
    name: str = ""
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class FigureRecord:
    name: str
    description: str
    reading: str  # what one sees in it, in sentences
    of_one_run: bool  # or of all that are given, side by side
    needs_bits: bool  # as they were after each task
    make: Callable[..., Drawing]


figures = Registry[FigureRecord]("figure")

Maker = Callable[..., Drawing]


def register_figure(
    name: str, description: str, reading: str, *, of_one_run: bool = False, needs_bits: bool = False
) -> Callable[[Maker], Maker]:
    """Decorator of a function that draws, which makes the figure known to every command."""

    def keep(make: Maker) -> Maker:
        figures.register(name, FigureRecord(name, description, reading, of_one_run, needs_bits, make))
        return make

    return keep


def draw(name: str, runs: list[StoredRun], **options: Any) -> Drawing:
    """``runs`` are of one stream; figures of one run take a single one."""
    try:
        from matplotlib import rc_context
    except ModuleNotFoundError:
        raise ValueError(f"matplotlib is not installed: {install('lab')}") from None
    record = figures[name]
    found = sorted({run.stream for run in runs})
    if len(found) > 1:
        raise ValueError(f"{name} is of one stream, and these are runs of {' and '.join(found)}: name one")
    if record.needs_bits:
        runs = [run for run in runs if run.bits is not None] or runs[:1]
    if record.of_one_run and len(runs) > 1:
        some = "\n".join(f"  {run.folder.path}" for run in runs[:8])
        raise ValueError(f"{name} is of one run, and {len(runs)} match: name one, such as\n{some}")
    with rc_context(STYLE):
        drawing = record.make(runs[0] if record.of_one_run else runs, **options)
    return replace(drawing, name="_".join([*_shared_folders(runs), name]))


def _shared_folders(runs: list[StoredRun]) -> list[str]:
    """The folders that all runs lie in, from that of the stream down to that of the run."""
    shared = []
    for names in zip(*(run.folder.path.parts[-3:] for run in runs), strict=True):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return shared


def image(drawing: Drawing, kind: str, dpi: int = 200) -> bytes:
    """As ``png`` or ``svg``; the same drawing gives the same bytes."""
    from matplotlib import rc_context

    data = io.BytesIO()
    with rc_context(STYLE):
        metadata = {"Date": None} if kind == "svg" else None
        drawing.figure.savefig(data, format=kind, dpi=dpi, metadata=metadata)
    return data.getvalue()


def save(drawing: Drawing, folder: Path) -> Drawing:
    """Write the drawing below ``folder`` as PNG and SVG with its own name; returns it with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / f"{drawing.name}.{kind}" for kind in ("png", "svg"))
    for file in files:
        write_aside(file, image(drawing, file.suffix[1:]))
    return replace(drawing, files=files)
