"""The command line: parse, call experiments, print."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch

try:
    import tyro
    from rich.console import Console
except ModuleNotFoundError as missing:
    raise SystemExit("the commands need the extra 'lab': pip install 'bitfreeze[lab]'") from missing

from . import data
from .distributed import RankFailed
from .experiments import figures, table
from .experiments.checkpoint import seconds_since
from .experiments.config import Config, make_config, parse_count, parse_options, preset, require_known
from .experiments.downloads import show_download
from .experiments.engines import Engine, engines
from .experiments.play import play_game
from .experiments.plugins import load_plugins
from .experiments.progress import show_progress, show_sweep
from .experiments.report import build_page
from .experiments.rows import Row, finished_rows, to_csv
from .experiments.runner import run
from .experiments.store import RunFolder, RunRefused, runs_root, write_aside
from .experiments.stored import find_runs
from .experiments.sweep import Outcome, distinct, grid_changes, parse_seeds, sweep
from .experiments.tensorboard import TensorBoard
from .experiments.torchrun import RanksLost, joined_ranks, on_first_of_node
from .experiments.watch import watcher
from .methods import Record, methods
from .nets import networks
from .streams import streams
from .training import TrainingDiverged

ERRORS = (
    OSError, ValueError, RunRefused, TrainingDiverged, RanksLost, RankFailed, data.DataMissing, data.DataCorrupt,
    data.DownloadFailed,
)  # fmt: skip

Name = tyro.conf.Positional[str]


@dataclass
class Run:
    """Carry out a run; the same command again continues one that was cut off."""

    stream: Name
    """Stream of tasks: see `bitfreeze list`."""
    method: str = "blip"
    """Method: see `bitfreeze list`."""
    variant: str = ""
    """Named variant of the stream's preset, such as `released`."""
    seed: int = 0
    """Seed of the training. The scenario's own is stream.seed."""
    set: list[str] = field(default_factory=list)
    """Changes to the preset: training.epochs=40 method.budget=0.2 network.hidden=[100] ..."""
    steps: str = ""
    """For games: steps in each, such as 200k or 10M; short for training.steps."""
    net: str = ""
    """The network; short for network.kind."""
    envs: list[str] = field(default_factory=list)
    """For games: the environments, such as ALE/Pong-v5 or CartPole-v1; short for stream.envs."""
    threads: int = 1
    """Threads. More than one helps large networks only, and two runs side by side use two cores better."""
    checkpoint_seconds: float = 20.0
    """Save at the end of an epoch when this long has passed since the last time."""
    keep_bits: bool = True
    """Keep frozen bits, centres and information gain of each task (8 bytes a parameter and task)."""
    tensorboard: bool = False
    """Write to TensorBoard too, below the run's folder."""

    def do(self) -> None:
        if self.threads < 1:
            raise SystemExit(f"bitfreeze: threads must be at least 1, got {self.threads}")
        torch.set_num_threads(self.threads)
        config = make_config(self.stream, self.method, self.variant, self.seed, [*self.set, *self._short()])
        with joined_ranks() as ranks:
            with ranks.together():
                if on_first_of_node():
                    _get_missing_data(config)
            if not ranks.leads:
                run(config, None, (), self.checkpoint_seconds, self.keep_bits)
                return
            self._lead(config)

    def _lead(self, config: Config) -> None:
        place = runs_root() / config.name
        with show_progress() as progress:
            listeners = [progress, *([TensorBoard(place / "tensorboard")] if self.tensorboard else [])]
            try:
                run(config, None, listeners, self.checkpoint_seconds, self.keep_bits)
            except KeyboardInterrupt:
                # what was trained since cannot be saved here: a state is whole only between two epochs
                ago = seconds_since(RunFolder(place).checkpoints)
                kept = "nothing was saved yet" if ago is None else f"kept up to the last checkpoint, {ago:.0f} s ago"
                raise KeyboardInterrupt(f"stopped; {kept}; to continue: {config.command}{self._besides()}") from None
            except OSError as error:
                raise OSError(f"{error}; what was there before has been kept") from error
        mine = [row for row in finished_rows(runs_root(), self.stream) if row["command"] == config.command]
        _print_table(mine, self.stream)
        print(f"kept in {place}; beside other runs: bitfreeze table {self.stream}")

    def _besides(self) -> str:
        """What was given that is no setting of the run."""
        given = {
            f"--threads {self.threads}": self.threads != Run.threads,
            f"--checkpoint-seconds {self.checkpoint_seconds}": self.checkpoint_seconds != Run.checkpoint_seconds,
            "--no-keep-bits": not self.keep_bits,
            "--tensorboard": self.tensorboard,
        }
        return "".join(f" {words}" for words, differs in given.items() if differs)

    def _short(self) -> list[str]:
        """What the short options say, as changes."""
        given = {
            "training.steps": self.steps and str(parse_count(self.steps)),
            "network.kind": self.net,
            "stream.envs": self.envs and json.dumps(self.envs, separators=(",", ":")),
        }
        return [f"{name}={value}" for name, value in given.items() if value]


@dataclass
class Sweep:
    """Carry out many runs, one in each of several processes, and show the table."""

    stream: Name
    methods: str = "blip,ft"
    """Methods, separated by commas; method:variant for a variant."""
    seeds: str = "0"
    """0-4, or 0,2,5."""
    set: list[str] = field(default_factory=list)
    """Changes to the preset, for all runs."""
    grid: list[str] = field(default_factory=list)
    """Values to go through: method.budget=0.03,0.1,0.3, or method.prior=20x,1x,0.1x for multiples of the preset's."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes at a time on this machine, each with one thread."""
    engine: str = "local"
    """Where: local, ray (a cluster) or slurm (through submitit)."""
    address: str = ""
    """Of the Ray cluster, such as auto or 10.0.0.1:6379; of slurm, `local` to try it out. Empty: start Ray here."""
    engine_options: list[str] = field(default_factory=list)
    """Of each Ray task or SLURM job: num_cpus=1 memory=2e9, or timeout_min=600 slurm_partition=cpu ..."""

    def do(self) -> None:
        pairs = [name.partition(":") for name in self.methods.split(",")]
        configs = distinct(
            make_config(self.stream, method, variant, seed, [*self.set, *point])
            for seed in parse_seeds(self.seeds)
            for method, _, variant in pairs
            for point in grid_changes(self.grid, make_config(self.stream, method, variant, changes=self.set))
        )
        require_known("engine", self.engine, engines)
        with closing(engines[self.engine](self.address, self.workers, parse_options(self.engine_options))) as engine:
            _get_missing_data(configs[0])
            outcomes = self._carry_out(configs, engine)
        failed = [outcome for outcome in outcomes if outcome.error]
        commands = {config.command for config in configs}
        mine = [row for row in finished_rows(runs_root(), self.stream) if row["command"] in commands]
        if mine:
            _print_table(mine, self.stream)
        print(f"runs are kept in {runs_root() / self.stream}")
        if failed:
            raise SystemExit(f"{len(failed)} of {len(outcomes)} runs failed, first: {failed[0].error}")

    def _carry_out(self, configs: list[Config], engine: Engine[Any]) -> list[Outcome]:
        with show_sweep(len(configs)) as display:
            try:
                return sweep(configs, engine, display)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    "stopped; the same command goes on from the last checkpoint of each run"
                ) from None


@dataclass
class Table:
    """Show the finished runs of a stream beside the paper's figures."""

    stream: Name
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
        rows = [
            row
            for row in finished_rows(runs_root(), self.stream)
            if (not self.only or self.only in _words(row)) and self.without not in _words(row)
        ]
        if not rows:
            raise SystemExit(
                f"no such finished run of {self.stream} in {runs_root()}: start with bitfreeze run {self.stream}"
            )
        if self.csv:
            print(to_csv(rows), end="")
        elif self.page:
            print(table.to_page(rows, self.stream, self.against))
        else:
            _print_table(rows, self.stream, self.against)


@dataclass
class Show:
    """Show a run: its settings and its accuracy matrix."""

    run: Name
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

    run: Name
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

    name: tyro.conf.Positional[str] = ""
    """Figure: workflow, heatmaps, sequence ..."""
    runs: tyro.conf.Positional[list[str]] = field(default_factory=list)
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

    runs: tyro.conf.Positional[list[str]] = field(default_factory=list)
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

    runs: tyro.conf.Positional[list[str]] = field(default_factory=list)
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


@dataclass
class List:
    """List streams, methods and networks; of a method or stream, what can be set."""

    name: tyro.conf.Positional[str] = ""
    """A method: its options. A stream: its settings, and its methods' variants."""

    def do(self) -> None:
        if self.name in methods:
            _print_options(make_config("digits5", self.name).method_options, "method")
        elif self.name in streams:
            config = make_config(self.name, "ft")
            for part in ("stream_options", "network", "training"):
                _print_options(getattr(config, part), part.removesuffix("_options"), config.help)
            for method, own in preset(self.name).get("methods", {}).items():
                for variant in own.get("variants", {}):
                    print(f"--method {method} --variant {variant}")
        elif self.name:
            require_known("stream or method", self.name, [*streams, *methods])
        else:
            self._all()

    def _all(self) -> None:
        for title, entries in (
            ("streams", {s.name: s.description for s in streams.values()}),
            ("methods (what they keep, by tasks T)", {name: _described(m.record) for name, m in methods.items()}),
            ("networks", {n.name: n.description for n in networks.values()}),
        ):
            print(f"{title}\n" + "\n".join(f"  {name:15} {text}" for name, text in entries.items()))


@dataclass
class DataList:
    """List the datasets and whether they are here."""

    def do(self) -> None:
        for entry in data.status():
            print(f"{entry.name:15} {entry.state:10} {entry.description}")
        print(f"folder: {data.data_root()}")


@dataclass
class DataGet:
    """Get a dataset from a mirror or a package, and verify it."""

    name: Name

    def do(self) -> None:
        _get(self.name)


@dataclass
class DataVerify:
    """Compare what a dataset's files hold with what it should be."""

    name: Name

    def do(self) -> None:
        found = data.verify(self.name)
        for file in found.files:
            print(f"{file.state:10} {file.path} {file.detail}".rstrip())
        if not found.ok:
            raise SystemExit(f"{self.name} is not whole: bitfreeze data get {self.name}")


@dataclass
class DataWhere:
    """Tell where a dataset's files are looked for."""

    name: Name

    def do(self) -> None:
        print(data.where(self.name))


@dataclass
class Data:
    """Datasets: list, get, verify, where."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[DataList, tyro.conf.subcommand("list")]
        | Annotated[DataGet, tyro.conf.subcommand("get")]
        | Annotated[DataVerify, tyro.conf.subcommand("verify")]
        | Annotated[DataWhere, tyro.conf.subcommand("where")]
    ]

    def do(self) -> None:
        self.command.do()


Command = (
    Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Table, tyro.conf.subcommand("table")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Play, tyro.conf.subcommand("play")]
    | Annotated[Figure, tyro.conf.subcommand("figure")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Watch, tyro.conf.subcommand("watch")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Data, tyro.conf.subcommand("data")]
)


def main() -> None:
    """The entry point of `bitfreeze`. Errors that a user can mend are one sentence, and so is Ctrl-C."""
    try:
        _require_each_once(sys.argv[1:])
        command = tyro.cli(Command, prog="bitfreeze", description="Continual learning with BLIP.")
        load_plugins()
        command.do()
    except ERRORS as error:
        raise SystemExit(f"bitfreeze: {error}") from None
    except KeyboardInterrupt as stop:
        print(f"\n{str(stop) or 'stopped'}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def _require_each_once(words: list[str]) -> None:
    """Of an option given twice the parser would silently keep the last."""
    options = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    for option in options:
        if options.count(option) > 1:
            raise SystemExit(
                f"bitfreeze: {option} is given more than once: put all that it is to say after one {option}"
            )


def _find_run(name: str) -> RunFolder:
    path = next((p for p in (Path(name), runs_root() / name) if (p / "config.toml").exists()), None)
    if path is None:
        raise SystemExit(f"there is no run {name!r}, neither as a folder nor below {runs_root()}")
    return RunFolder(path)


def _words(row: Row) -> list[str]:
    return row["variant"].split() or ["preset"]


def _print_options(options: Mapping[str, object], part: str, texts: Mapping[str, str] | None = None) -> None:
    for name, value in options.items():
        text = (texts or {}).get(f"{part}.{name}", "")
        print(f"--set {part}.{name}={'none' if value is None else value}" + (f"  ({text})" if text else ""))


def _described(record: Record) -> str:
    return f"{record.memory:6} {record.description}" + (f" ({record.paper})" if record.paper else "")


def _print_table(rows: list[Row], stream: str, against: str = "") -> None:
    lines, console = table.summarise(rows, stream, against), Console()
    if console.is_terminal:
        console.print(table.to_terminal(lines, stream, against))
    else:
        print(table.to_markdown(lines, against), end="")


def _get_missing_data(config: Config) -> None:
    here = {entry.name for entry in data.status() if entry.state in ("here", "carried")}
    for name in streams[config.stream].needs:
        if name not in here:
            _get(name)


def _get(name: str) -> None:
    with show_download() as progress:
        got = data.get(name, progress=progress)
    for note in got.notes:
        print(note, file=sys.stderr)
    for file, source in got.sources.items():
        print(f"{file}: {source}")
    print(f"in {got.folder}")
