"""`bitfreeze table`, `show`, `play`, `figure`, `report` and `watch`: what runs have given."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ..experiments import figures, table
from ..experiments.config import require_known
from ..experiments.play import play_game
from ..experiments.report import build_page
from ..experiments.rows import finished_rows, to_csv
from ..experiments.store import RunFolder, runs_root, write_aside
from ..experiments.stored import find_runs, is_wanted
from ..experiments.watch import watcher
from ..streams import streams
from .common import RunName, RunNames, StreamName, print_table


@dataclass
class Table:
    """Show the finished runs of a stream beside the paper's figures."""

    stream: StreamName
    """Stream of tasks: see `bitfreeze list`."""
    against: str = ""
    """Compare every method with this one, seed by seed."""
    only: str = ""
    """Show only runs whose variant has this word, such as training.epochs=10; `preset` for those without any."""
    without: str = ""
    """Leave out runs whose variant has this word."""
    csv: bool = False
    """Print a row for each run as CSV instead."""
    page: bool = False
    """Print a page of Markdown with protocol and versions instead."""

    def do(self) -> None:
        require_known("stream", self.stream, streams)
        found = finished_rows(runs_root(), self.stream)
        rows = [row for row in found if is_wanted(row["variant"], self.only, self.without)]
        if not rows:
            raise ValueError(
                f"no such finished run of {self.stream} in {runs_root()}: start with bitfreeze run {self.stream}"
            )
        if self.csv:
            print(to_csv(rows), end="")
        elif self.page:
            print(table.to_page(rows, self.stream, self.against))
        else:
            print_table(rows, self.stream, self.against)


@dataclass
class Show:
    """Show a run: its settings and its accuracy matrix."""

    run: RunName
    """Its folder, or its name below the folder of runs."""

    def do(self) -> None:
        folder = _find_run(self.run)
        print((folder.path / "config.toml").read_text())
        for kind in ("accuracy", "score"):
            rows = folder.read_matrix(kind)
            if rows:
                print(f"{kind} on each task, after each task")
            for row in rows:
                print("  ".join(f"{value:6.2f}" for value in row))
        for event in folder.events():
            if event["event"] == "task":
                others = {k: v for k, v in event.items() if isinstance(v, int | float) and k not in ("n", "task")}
                print(f"after task {event['task'] + 1}: " + ", ".join(f"{k} {v:.6g}" for k, v in others.items()))


@dataclass
class Play:
    """Write a game that the agent of a run plays as a moving picture."""

    run: RunName
    """Its folder, or its name below the folder of runs."""
    task: int
    """The game: 1 for the first task."""
    after: int
    """The agent as it was after learning so many tasks."""
    seed: int = 0
    """Another seed is another game."""
    out: Path | None = None
    """File to write, .gif or .mp4; by default in the run's folder."""

    def do(self) -> None:
        folder = _find_run(self.run)
        out = self.out or folder.path / "play" / f"task{self.task}-after{self.after}-seed{self.seed}.gif"
        score = play_game(folder, self.task, self.after, out, self.seed)
        print(f"score {score:g}: {out}")


@dataclass
class Figure:
    """Draw a figure of stored runs, as PNG and SVG; without a name, list the figures."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[FIGURE]")] = ""
    """Figure: workflow, heatmaps, sequence ..."""
    runs: RunNames = field(default_factory=list)
    """Runs: folders, or names below the folder of runs, such as mnist5 or mnist5/blip/seed0."""
    out: Path = Path("figures")
    """Folder to write to."""
    only: str = ""
    """Take only runs whose variant has this word, such as training.epochs=10; `preset` for those without any."""
    without: str = ""
    """Leave out runs whose variant has this word."""
    parameter: str = ""
    """For workflow: which parameter, such as backbone.1.weight[3,100]; the most telling one if not given."""

    def do(self) -> None:
        if not self.name:
            print("\n".join(f"{figure.name:11} {figure.description}" for figure in figures.figures.values()))
            return
        require_known("figure", self.name, figures.figures)
        if self.parameter and self.name != "workflow":
            raise ValueError("--parameter is for the figure workflow")
        runs = find_runs(runs_root(), self.runs, self.only, self.without)
        drawing = figures.draw(self.name, runs, **({"parameter": self.parameter} if self.parameter else {}))
        print(drawing.words)
        print("\n".join(str(file) for file in figures.save(drawing, self.out, self.name)))


@dataclass
class Report:
    """Write one HTML page with tables, figures, settings and an explorer of frozen bits; it needs no network."""

    runs: RunNames = field(default_factory=list)
    """Runs: folders, or names below the folder of runs; all of them if none is named."""
    out: Path = Path("report.html")
    """File to write."""
    only: str = ""
    """Take only runs whose variant has this word, such as training.epochs=10; `preset` for those without any."""
    without: str = ""
    """Leave out runs whose variant has this word."""

    def do(self) -> None:
        page = build_page(find_runs(runs_root(), self.runs, self.only, self.without))
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_aside(self.out, page)
        print(f"{self.out} ({len(page.encode()) / 1e6:.1f} MB): open it in a browser")


@dataclass
class Watch:
    """Serve the report to a browser on this machine, and show how runs go on."""

    runs: RunNames = field(default_factory=list)
    """Runs: folders, or names below the folder of runs; all of them if none is named."""
    port: int = 8642
    """Port; 0 takes one that is free."""
    host: str = "127.0.0.1"
    """Address to serve on. Any other than this machine's own lets others on the network see the runs."""

    def do(self) -> None:
        with watcher(runs_root(), self.runs, self.host, self.port) as server:
            if not server.loopback:
                print(f"warning: everyone who can reach {self.host} can see these runs", file=sys.stderr)
            print(f"watching {runs_root()} at {server.address} (Ctrl-C ends it)", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print("\nended")


def _find_run(name: str) -> RunFolder:
    path = next((p for p in (Path(name), runs_root() / name) if (p / "config.toml").exists()), None)
    if path is None:
        raise ValueError(f"there is no run {name!r}, neither as a folder nor below {runs_root()}")
    return RunFolder(path)
