"""Looking at runs on disk: `table`, `read_run`, `play`, `figure`, `report` and `serve`."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from .places import Places, Root, several

if TYPE_CHECKING:
    from ..results.figures import Drawing
    from ..results.server import ReportServer
    from ..results.stored import StoredRun
    from ..results.table import Table
    from ..runs.config import Config


def table(
    stream: str,
    against: str = "",
    *,
    only: str = "",
    without: str = "",
    configs: "Iterable[Config] | None" = None,
    root: Root = None,
) -> "Table":
    """The finished runs of a stream beside the paper's figures.

    Args:
        stream: Name of the stream of tasks.
        against: Method that every other one is compared with, seed by seed; empty for none.
        only: Word that the variant of a run must have, such as `training.epochs=10`; `preset` for runs without variant.
        without: Word that the variant of a run must not have.
        configs: Settings of the runs to show; None for all.
        root: Folder of runs.

    Returns:
        The table: `rows` has a row for each run, `lines` a line for each method, and `str` gives Markdown. `to_csv`,
        `to_json`, `to_latex` and `to_page` give other forms.

    Raises:
        ValueError: If there is no such stream, or no such finished run of it.

    Example:
        ```python
        print(lab.table("mnist5", against="ft"))
        accuracies = {(row["method"], row["seed"]): row["acc"] for row in lab.table("mnist5").rows}
        ```
    """
    from ..results.rows import finished_rows
    from ..results.stored import is_wanted
    from ..results.table import Table
    from ..runs.folder import runs_root
    from ..streams import streams

    place, wanted = runs_root(root), None if configs is None else {config.command for config in configs}
    rows = [
        row
        for row in finished_rows(place, streams[stream].name)
        if is_wanted(row["variant"], only, without) and (wanted is None or row["command"] in wanted)
    ]
    if not rows:
        raise ValueError(f"no such finished run of {stream} in {place}: start with bitfreeze run {stream}")
    return Table(stream, rows, against)


def read_run(place: str | Path, *, root: Root = None) -> "StoredRun":
    """A run on disk, finished or not: `bitfreeze show`.

    Args:
        place: Folder of the run, or its name below the folder of runs.
        root: Folder of runs.

    Returns:
        The run: its settings, events, matrix of accuracies or scores, result, and frozen bits after each task.

    Raises:
        ValueError: If there is no such run, or its settings cannot be read.

    Example:
        ```python
        lab.read_run("digits5/blip/seed0").matrix[-1]  # accuracy on each task after the last one
        ```
    """
    from ..results.stored import find_run
    from ..runs.folder import runs_root

    return find_run(runs_root(root), str(place))


def play(
    place: str | Path,
    task: int,
    after: int,
    *,
    seed: int = 0,
    out: Path | str | None = None,
    envs: Places = (),
    root: Root = None,
) -> tuple[float, Path]:
    """Write a game that the agent of a run plays as a moving picture.

    Args:
        place: Folder of the run, or its name below the folder of runs.
        task: The game: 1 for the first task.
        after: The agent is taken as it was after learning so many tasks.
        seed: Another seed is another game.
        out: File to write, .gif or .mp4; None for one in the run's folder.
        envs: Environments of the run that may import the module that their id names, such as `module:Env-v1`. Others
            are refused, because a run may come from anybody.
        root: Folder of runs.

    Returns:
        The score of the game, and the file.

    Raises:
        ValueError: If the run is none of games, has no such task, or names a module that `envs` does not.
        OSError: If the file cannot be written.

    Example:
        ```python
        score, file = lab.play("control/blip/seed0", task=1, after=3)
        ```
    """
    from ..results.play import play_game

    folder = read_run(place, root=root).folder
    file = folder.path / "play" / f"task{task}-after{after}-seed{seed}.gif" if out is None else Path(out)
    return play_game(folder, task, after, file, seed, several(envs)), file


def figure(
    name: str,
    runs: Places = (),
    *,
    only: str = "",
    without: str = "",
    parameter: str = "",
    out: Path | str | None = None,
    root: Root = None,
) -> "Drawing":
    """Draw a figure of stored runs.

    Args:
        name: Name of the figure, one of `registries()["figures"]`.
        runs: Folders of runs, or names below the folder of runs, such as mnist5 or mnist5/blip/seed0; empty for all.
        only: Word that the variant of a run must have; `preset` for runs without variant.
        without: Word that the variant of a run must not have.
        parameter: For the figure workflow: which parameter, such as backbone.1.weight[3,100]; empty for the most
            telling one.
        out: Folder to write the figure to, as PNG and SVG named after stream, run and figure; None writes nothing.
        root: Folder of runs.

    Returns:
        The drawing: matplotlib's `figure`, what it shows in `words`, and the `files` that were written.

    Raises:
        ValueError: If there is no such figure or run, or the figure needs other runs.

    Example:
        ```python
        lab.figure("matrix", "digits5/blip/seed0", out="figures").words
        ```
    """
    from ..results.figures import draw, figures, save
    from ..results.stored import find_runs
    from ..runs.folder import runs_root

    known = figures[name].name  # refuses an unknown name before runs are read
    if parameter and known != "workflow":
        raise ValueError(f"parameter must be left out for the figure {name}, got {parameter!r}; workflow takes it")
    found = find_runs(runs_root(root), several(runs), only, without)
    drawing = draw(known, found, **({"parameter": parameter} if parameter else {}))
    return drawing if out is None else save(drawing, Path(out))


def report(
    runs: Places = (),
    out: Path | str = "report.html",
    *,
    only: str = "",
    without: str = "",
    root: Root = None,
) -> Path:
    """Write one HTML page with tables, figures, settings and an explorer of frozen bits. It needs no network.

    Args:
        runs: Folders of runs, or names below the folder of runs; empty for all.
        out: File to write.
        only: Word that the variant of a run must have; `preset` for runs without variant.
        without: Word that the variant of a run must not have.
        root: Folder of runs.

    Returns:
        The file.

    Raises:
        ValueError: If there is no such run.

    Example:
        ```python
        lab.report("digits5", "digits5.html")
        ```
    """
    from ..results.report import build_page
    from ..results.stored import find_runs
    from ..runs.durable import write_aside
    from ..runs.folder import runs_root

    page, file = build_page(find_runs(runs_root(root), several(runs), only, without)), Path(out)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_aside(file, page)
    return file


def serve(
    runs: Places = (), *, host: str = "127.0.0.1", port: int = 8642, root: Root = None
) -> "AbstractContextManager[ReportServer]":
    """Serve the report to a browser, with runs that are going on: `bitfreeze watch`.

    Args:
        runs: Folders of runs, or names below the folder of runs; empty for all.
        host: Address to serve on. Any other than this machine's own lets others on the network see the runs.
        port: Port; 0 takes one that is free.
        root: Folder of runs.

    Returns:
        A context with the server, which has its port and its `address`. `serve_forever` starts it.

    Raises:
        ValueError: If the server cannot have this port.

    Example:
        ```python
        with lab.serve() as server:
            print(server.address)
            server.serve_forever()
        ```
    """
    from ..results.server import report_server
    from ..runs.folder import runs_root

    return report_server(runs_root(root), several(runs), host, port)
