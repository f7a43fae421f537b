"""`bitfreeze table`, `show`, `play`, `figure`, `report` and `watch`: what runs have given."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ... import lab
from .arguments import RunName, RunNames, StreamName, Text

if TYPE_CHECKING:
    from ..results.stored import StoredRun
    from ..results.table import Table as Summary


@dataclass
class Table:
    """Show the finished runs of a stream beside the paper's figures."""

    stream: StreamName
    """Stream of tasks: see `bitfreeze list`."""
    against: Text = ""
    """Compare every method with this one, seed by seed."""
    only: Text = ""
    """Show only runs whose variant has this word, such as training.epochs=10; `preset` for those without any."""
    without: Text = ""
    """Leave out runs whose variant has this word."""
    csv: bool = False
    """Print a row for each run as CSV instead."""
    json: bool = False
    """Print the summary and each run as JSON instead."""
    latex: bool = False
    """Print a table for a paper instead (LaTeX with booktabs, the best of each column in bold)."""
    page: bool = False
    """Print a page of Markdown with protocol and versions instead."""

    def do(self) -> None:
        chosen = [form for form in ("csv", "json", "latex", "page") if getattr(self, form)]
        if len(chosen) > 1:
            raise ValueError(f"a table has one form, got {' and '.join(f'--{form}' for form in chosen)}; name one")
        found = lab.table(self.stream, self.against, only=self.only, without=self.without)
        forms = {"csv": found.to_csv, "json": found.to_json, "latex": found.to_latex, "page": found.to_page}
        if chosen:
            print(forms[chosen[0]]().rstrip("\n"))
        else:
            print_table(found)


@dataclass
class Show:
    """Show a run: its settings, its accuracy matrix, and ACC and BWT at the end."""

    run: RunName
    """Its folder, or its name below the folder of runs."""

    def do(self) -> None:
        run = lab.read_run(self.run)
        print((run.folder.path / "config.toml").read_text())
        if name := run.folder.matrix_name():
            print(f"{name} on each task, after each task")
        for row in run.matrix:
            print("  ".join(f"{value:6.2f}" for value in row))
        for event in run.learned:
            values = {k: v for k, v in event.to_json().items() if k not in ("n", "task") and isinstance(v, int | float)}
            print(f"after task {event.task + 1}: " + ", ".join(f"{k} {v:.6g}" for k, v in values.items()))
        print(_ending(run))


def _ending(run: "StoredRun") -> str:
    """What came out of a run, or how far it has come."""
    done = "" if run.result else f"not finished, {len(run.learned)} of {len(run.tasks)} tasks learned"
    if not run.matrix:
        return done or "finished"
    if run.folder.matrix_name() == "accuracy":
        acc, bwt = lab.metrics.average_accuracy(run.matrix), lab.metrics.backward_transfer(run.matrix)
        figures = f"ACC {acc:.2f}, BWT {bwt:z.2f}"
    else:
        figures = "scores " + ", ".join(f"{score:.1f}" for score in run.matrix[-1])
    return f"{figures} ({done})" if done else figures


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
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """File to write, .gif or .mp4; by default in the run's folder."""
    envs: Annotated[list[str], tyro.conf.arg(metavar="ENV ...", help_behavior_hint="")] = field(default_factory=list)
    """Environments of the run that may import the module in their id, such as module:Env-v1; others are refused."""

    def do(self) -> None:
        score, file = lab.play(self.run, self.task, self.after, seed=self.seed, out=self.out, envs=self.envs)
        print(f"score {score:g}: {file}")


@dataclass
class Figure:
    """Draw a figure of stored runs, as PNG and SVG; without a name, list the figures."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[FIGURE]", help_behavior_hint="")] = ""
    """Figure: workflow, heatmaps, sequence ..."""
    runs: RunNames = field(default_factory=list)
    """Runs: folders, or names below the folder of runs, such as mnist5 or mnist5/blip/seed0."""
    out: Path = Path("figures")
    """Folder to write to."""
    only: Text = ""
    """Take only runs whose variant has this word, such as training.epochs=10; `preset` for those without any."""
    without: Text = ""
    """Leave out runs whose variant has this word."""
    parameter: Text = ""
    """For workflow: which parameter, such as backbone.1.weight[3,100]; the most telling one if not given."""

    def do(self) -> None:
        if not self.name:
            known = lab.registries()["figures"]
            print("\n".join(f"{figure.name:11} {figure.description}" for figure in known.values()))
            return
        drawing = lab.figure(
            self.name, self.runs, only=self.only, without=self.without, parameter=self.parameter, out=self.out
        )
        print(drawing.words)
        print("\n".join(str(file) for file in drawing.files))


@dataclass
class Report:
    """Write one HTML page with tables, figures, settings and an explorer of frozen bits; it needs no network."""

    runs: RunNames = field(default_factory=list)
    """Runs: folders, or names below the folder of runs; all of them if none is named."""
    out: Path = Path("report.html")
    """File to write."""
    only: Text = ""
    """Take only runs whose variant has this word, such as training.epochs=10; `preset` for those without any."""
    without: Text = ""
    """Leave out runs whose variant has this word."""

    def do(self) -> None:
        file = lab.report(self.runs, self.out, only=self.only, without=self.without)
        print(f"{file} ({file.stat().st_size / 1e6:.1f} MB): open it in a browser")


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
        with lab.serve(self.runs, host=self.host, port=self.port) as server:
            if not server.loopback:
                print(f"warning: everyone who can reach {self.host} can see these runs", file=sys.stderr)
            print(f"watching {server.root} at {server.address} (Ctrl-C ends it)", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print("\nended")


def print_table(found: "Summary") -> None:
    """Print the summary: as a table on a terminal, as Markdown elsewhere."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as TerminalTable
    from rich.text import Text

    from ..results.table import grid

    console = Console()
    if not console.is_terminal:
        print(found, end="")
        return
    titles, rows = grid(found.lines)
    shown = TerminalTable(title=found.title, box=SIMPLE)
    for title in titles:
        shown.add_column(title, justify="left" if title in ("method", "variant") else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    console.print(shown)
